"""The handler that XLA calls to run kernels inside programs of JAX. It runs without Python, on threads of XLA.

A call of XLA holds the plan of its kernels as words, see `words_of` in _cpu/running/xla.py. The handler finds the
kernels in a table of this process by their digests, allocates scratch, and runs one kernel after another. Addresses are
integers.
The file xla/ffi/api/c_api.h declares the structures. The comment after an offset names the field there.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, disable-error-code="name-defined"

import platform

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from parprims._cpu.templates.declarations import MINOR, NAME
from parprims._cpu.templates.entry import call_c, call_numba, object_code, word_of

_WORD, _HALF, _ADDRESS = ir.IntType(64), ir.IntType(32), ir.IntType(8).as_pointer()


def function(pyfunc):
    return njit(pyfunc, nogil=True, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)


# ---- Memory and calls by address --------------------------------------------------------------------------------


def _pointer(builder, address, kind=_WORD):
    return builder.inttoptr(address, kind.as_pointer())


@intrinsic
def word(typing, address):
    def generate(context, builder, signature, args):
        return builder.load(_pointer(builder, args[0]))

    return types.int64(types.int64), generate


@intrinsic
def half(typing, address):
    def generate(context, builder, signature, args):
        return builder.sext(builder.load(_pointer(builder, args[0], _HALF)), _WORD)

    return types.int64(types.int64), generate


@intrinsic
def put(typing, address, value):
    def generate(context, builder, signature, args):
        builder.store(args[1], _pointer(builder, args[0]))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def put_half(typing, address, value):
    def generate(context, builder, signature, args):
        builder.store(builder.trunc(args[1], _HALF), _pointer(builder, args[0], _HALF))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


# Adds to a word that threads share, and returns the word as it was.
@intrinsic
def added(typing, address, value):
    def generate(context, builder, signature, args):
        return builder.atomic_rmw("add", _pointer(builder, args[0]), args[1], "seq_cst")

    return types.int64(types.int64, types.int64), generate


# Calls a function of C that takes an address and returns an address.
@intrinsic
def call_address(typing, place, argument):
    def generate(context, builder, signature, args):
        return builder.call(_pointer(builder, args[0], ir.FunctionType(_WORD, [_WORD])), [args[1]])

    return types.int64(types.int64, types.int64), generate


# Calls a kernel as threads of Python do, where subnormal numbers are no zeros. XLA's threads take them for zeros.
@intrinsic
def run_kernel(typing, place, arrays, begin, end):
    def generate(context, builder, signature, args):
        mode = _mode_of_floats(builder)
        if mode is not None:
            _set_mode_of_floats(builder, builder.and_(mode, mode.type(~_ZERO_SUBNORMALS)))
        missing = builder.call(_pointer(builder, args[0], ir.FunctionType(_WORD, [_WORD] * 3)), args[1:])
        if mode is not None:
            _set_mode_of_floats(builder, mode)
        return missing

    return types.int64(*[types.int64] * 4), generate


_MACHINE = {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine().lower(), platform.machine().lower())
_ZERO_SUBNORMALS = 0x8040 if _MACHINE == "x86_64" else 1 << 24 | 1 << 19
"""The bits of the processor's register by which results, and operands, that are subnormal become zeros."""


def _access_mode(builder, name, value=None):
    """Read, or with a value write, the register of an x86 processor through memory."""
    place = cgutils.alloca_once(builder, _HALF)
    if value is not None:
        builder.store(value, place)
    kind = ir.FunctionType(ir.VoidType(), [_ADDRESS])
    builder.call(builder.module.declare_intrinsic(f"llvm.x86.sse.{name}", (), kind), [builder.bitcast(place, _ADDRESS)])
    return builder.load(place)


def _mode_of_floats(builder):
    """Return the register that says how floats are computed; None for a processor that is not known."""
    if _MACHINE == "x86_64":
        return _access_mode(builder, "stmxcsr")
    if _MACHINE == "aarch64":
        return builder.asm(ir.FunctionType(_WORD, []), "mrs $0, fpcr", "=r", [], True)
    return None


def _set_mode_of_floats(builder, mode):
    if _MACHINE == "x86_64":
        _access_mode(builder, "ldmxcsr", mode)
    else:
        builder.asm(ir.FunctionType(ir.VoidType(), [_WORD]), "msr fpcr, $0", "r", [mode], True)


def _of_c(name, result, *kinds):
    """Return an intrinsic that calls a function of Python's C library, without the interpreter."""

    def generate(context, builder, signature, args):
        given = [
            builder.trunc(one, kind) if kind is _HALF else builder.inttoptr(one, kind) if kind is _ADDRESS else one
            for one, kind in zip(args, kinds, strict=True)
        ]
        made = call_c(builder, name, result, *given)
        if result is _ADDRESS:
            return builder.ptrtoint(made, _WORD)
        return word_of(0)

    signature = types.int64(*[types.int64] * len(kinds))

    def of_none(typing):
        return signature, generate

    def of_one(typing, first):
        return signature, generate

    def of_two(typing, first, second):
        return signature, generate

    return intrinsic((of_none, of_one, of_two)[len(kinds)])


allocate = _of_c("PyMem_RawMalloc", _ADDRESS, _WORD)
free = _of_c("PyMem_RawFree", ir.VoidType(), _ADDRESS)
new_lock = _of_c("PyThread_allocate_lock", _ADDRESS)
free_lock = _of_c("PyThread_free_lock", ir.VoidType(), _ADDRESS)
acquire = _of_c("PyThread_acquire_lock", _HALF, _ADDRESS, _HALF)
release = _of_c("PyThread_release_lock", ir.VoidType(), _ADDRESS)


def _constant_text(text):
    @intrinsic
    def address(typing):
        def generate(context, builder, signature, args):
            return builder.ptrtoint(context.insert_const_string(builder.module, text), _WORD)

        return types.int64(), generate

    return address


no_memory = _constant_text("parprims: no memory is left for the scratch of a kernel")
no_kernel = _constant_text(
    "parprims: this process has not compiled a kernel of the program. Trace the program in the process that runs it, "
    'or give the calls of parprims method="array" before the program is saved.'
)


# ---- Launches on several threads --------------------------------------------------------------------------------

# A launch that threads share is 9 words: the next range, the ranges done, the threads that hold these words, the number
# of ranges, the tasks, the kernel, its arrays, whether memory was missing, and a lock that is held until all is done.
_LAUNCH = 9 * 8


@function
def take_ranges(launch):
    ranges, tasks, kernel, arrays = word(launch + 24), word(launch + 32), word(launch + 40), word(launch + 48)
    at = added(launch, 1)
    while at < ranges:
        if run_kernel(kernel, arrays, tasks * at // ranges, tasks * (at + 1) // ranges) != 0:
            put(launch + 56, 1)
        if added(launch + 8, 1) == ranges - 1:
            release(word(launch + 64))
        at = added(launch, 1)


@function
def leave(launch):
    if added(launch + 16, -1) == 1:
        free_lock(word(launch + 64))
        free(launch)


# A thread of XLA may come when all is done. It reads nothing of the call then, only the words of the launch.
def help_launch(launch):
    take_ranges(launch)
    leave(launch)
    return 0


# Returns the address of a new structure, with its first words, in `memory` bytes; 0 if no memory is left.
@function
def new_structure(size, memory):
    given = allocate(memory)
    if given != 0:
        put(given, size)  # struct_size
        put(given + 8, 0)  # extension_start
    return given


@function
def most_threads(api, context, most):
    answer = new_structure(32, 40)
    if answer == 0:
        return 1
    put(answer + 16, context)  # ctx
    put(answer + 24, answer + 32)  # num_threads
    put(answer + 32, 1)
    error = call_address(word(api + 144), answer)  # XLA_FFI_ThreadPool_NumThreads
    found = word(answer + 32)
    if error != 0:
        forget_error(api, error)
        found = 1
    free(answer)
    return min(found, most)


@function
def forget_error(api, error):
    given = new_structure(24, 24)
    if given != 0:
        put(given + 16, error)  # error
        call_address(word(api + 64), given)  # XLA_FFI_Error_Destroy
        free(given)


@function
def ask_for_help(api, context, launch, helper):
    given = new_structure(40, 40)
    if given == 0:
        return 1
    put(given + 16, context)  # ctx
    put(given + 24, helper)  # task
    put(given + 32, launch)  # data
    error = call_address(word(api + 136), given)  # XLA_FFI_ThreadPool_Schedule
    free(given)
    if error != 0:
        forget_error(api, error)
    return error


# Runs a kernel as `run` in _cpu/threads.py does; returns 0, or 1 if no memory is left.
@function
def run_launch(frame, kernel, arrays, tasks, least, most, helper):
    api, context = word(frame + 16), word(frame + 24)
    enough = tasks // max(least, 1)
    threads = 1
    if enough > 1 and most > 1:
        allowed = most_threads(api, context, most)
        while threads < allowed and (threads + 1) * threads <= enough:
            threads += 1
    if threads == 1:
        return run_kernel(kernel, arrays, 0, tasks)
    launch, lock = allocate(_LAUNCH), new_lock()
    if launch == 0 or lock == 0:
        if launch != 0:
            free(launch)
        if lock != 0:
            free_lock(lock)
        return 1
    acquire(lock, 1)
    put(launch, 0)
    put(launch + 8, 0)
    put(launch + 16, threads)
    put(launch + 24, min(4 * threads, enough))
    put(launch + 32, tasks)
    put(launch + 40, kernel)
    put(launch + 48, arrays)
    put(launch + 56, 0)
    put(launch + 64, lock)
    for _ in range(threads - 1):
        if ask_for_help(api, context, launch, helper) != 0:
            added(launch + 16, -1)
    take_ranges(launch)
    acquire(lock, 1)  # until the last range is done
    failed = word(launch + 56)
    leave(launch)
    return failed


# ---- The handler ------------------------------------------------------------------------------------------------


@function
def failed_with(frame, message, code):
    given, api = new_structure(28, 32), word(frame + 16)
    if given == 0:
        return 0
    put(given + 16, message)  # message
    put_half(given + 24, code)  # errc
    error = call_address(word(api + 48), given)  # XLA_FFI_Error_Create
    free(given)
    return error


# Returns the address of a kernel, or 0 if this process has none of the digest. The table of kernels, which Python
# fills, is its length, a power of two, the most threads, and entries of three words: the two words of a digest, and an
# address.
@function
def found(kernels, first, second):
    last = word(kernels) - 1
    at = first & last
    entry = kernels + 16 + 24 * at
    while word(entry + 16) != 0:
        if word(entry) == first and word(entry + 8) == second:
            return word(entry + 16)
        at = (at + 1) & last
        entry = kernels + 16 + 24 * at
    return 0


# Answers the question for the version of the interface, which XLA asks when the handler is registered.
@function
def answer(extension):
    while extension != 0:
        if half(extension + 8) == 1:  # type: XLA_FFI_Extension_Metadata
            metadata = word(extension + 24)  # metadata
            put_half(metadata + 24, 0)  # api_version.major_version
            put_half(metadata + 28, MINOR)  # api_version.minor_version
        extension = word(extension + 16)  # next


@function
def put_buffers(to, buffers, count):
    for at in range(count):
        put(to + 8 * at, word(word(buffers + 8 * at) + 24))  # data


# Takes the frame of a call, the table of kernels, and the address of `help_launch` as a function of C.
def handle(frame, kernels, helper):
    if word(frame + 8) != 0:  # extension_start
        answer(word(frame + 8))
        return 0
    inputs, outputs = word(frame + 56), word(frame + 96)  # args.size, rets.size
    plan = word(word(word(frame + 160)) + 16)  # attrs.attrs[0].data
    launches, kept = word(plan), word(plan + 8)
    sizes = plan + 16 + 48 * launches
    total = 64
    for at in range(kept):
        total += word(sizes + 8 * at)
    count = inputs + outputs + kept + 1
    block = allocate(16 * count + total)
    if block == 0:
        return failed_with(frame, no_memory(), 8)  # XLA_FFI_Error_Code_RESOURCE_EXHAUSTED
    arrays, given = block, block + 8 * count
    put_buffers(arrays, word(frame + 72), inputs)  # args.args
    put_buffers(arrays + 8 * inputs, word(frame + 112), outputs)  # rets.rets
    place = (block + 16 * count + 63) & -64
    for at in range(kept):
        put(arrays + 8 * (inputs + outputs + at), place)
        place += word(sizes + 8 * at)
    put(arrays + 8 * (count - 1), sizes + 8 * kept)  # the numbers
    most = word(kernels + 8)
    for at in range(launches):
        launch = plan + 16 + 48 * at
        kernel = found(kernels, word(launch), word(launch + 8))
        if kernel == 0:
            free(block)
            return failed_with(frame, no_kernel(), 9)  # XLA_FFI_Error_Code_FAILED_PRECONDITION
        read, begin = word(launch + 32), word(launch + 40)
        for one in range(read):
            put(given + 8 * one, word(arrays + 8 * one))
        for one in range(begin, count):
            put(given + 8 * (read + one - begin), word(arrays + 8 * one))
        if run_launch(frame, kernel, given, word(launch + 16), word(launch + 24), most, helper) != 0:
            free(block)
            return failed_with(frame, no_memory(), 8)
    free(block)
    return 0


def _add_entries(context, module, handler, help_of_thread):
    """Add the functions NAME, the handler, and NAME_help, the task of a thread, and the variable NAME_table."""
    kernels = ir.GlobalVariable(module, _WORD, f"{NAME}_table")
    kernels.initializer = word_of(0)
    helper = ir.Function(module, ir.FunctionType(ir.VoidType(), [_WORD]), f"{NAME}_help")
    builder = ir.IRBuilder(helper.append_basic_block())
    call_numba(context, builder, help_of_thread, helper.args)
    builder.ret_void()
    entry = ir.Function(module, ir.FunctionType(_WORD, [_WORD]), NAME)
    builder = ir.IRBuilder(entry.append_basic_block())
    arguments = (*entry.args, builder.load(kernels), builder.ptrtoint(helper, _WORD))
    _, error = call_numba(context, builder, handler, arguments)
    builder.ret(error)


def compiled_handler():
    """Return the object code of the handler."""
    return object_code(
        [(handle, types.int64(types.int64, types.int64, types.int64)), (help_launch, types.int64(types.int64))],
        _add_entries,
    )
