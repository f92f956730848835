"""Random calls of every public function, valid and hostile: the result is right, or an error names the argument.

    python -m tests.fuzz --calls 20000 --seed 1            # what nox -s fuzz runs
    python -m tests.fuzz --backend numpy --seed 1 --call 1234   # one call again, as a violation's line says

A call is drawn from (seed, backend, number) alone. A valid one is compared with a loop in higher precision, or in exact
integers, that shares no code with the library. A hostile one has an argument or two replaced by what they must not be.
Of every call is asked:

- that it returns what is right, as arrays of its library, or raises ValueError, TypeError, IndexError or MethodRefused
  with a message that names an argument replaced;
- that inputs keep their bytes, results share no memory with them, and nothing warns;
- that `parprims.methods` raises what the call raises, and that what it promises serves.
"""
