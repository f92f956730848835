"""The entries of a kernel, by which Python and programs of XLA call it, and the memory that a kernel allocates.

`kernel` compiles a function to object code, which needs Numba no more: it takes arrays of NumPy as they are, or
addresses, and calls functions of Python and C alone. Every process that loads it runs the same instructions.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, allow-subclassing-any

from llvmlite import ir
from numba import types
from numba.core import cgutils, codegen, compiler, typed_passes, untyped_passes
from numba.core.compiler_lock import global_compiler_lock
from numba.core.compiler_machinery import PassManager
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from parprims._cpu.templates.declarations import NAME

_BYTE, _SIZE = ir.IntType(8), ir.IntType(64)
_POINTER = _BYTE.as_pointer()


def word_of(value):
    return ir.Constant(_SIZE, value)


def call_c(builder, name, result, *given):
    kind = ir.FunctionType(result, [one.type for one in given])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), given)


# Returns an array of one axis whose elements are not set. The memory of a kernel is a list of pieces, and each piece
# begins with the address of the piece before. If no memory is left, the kernel ends at once with an error.
@intrinsic
def empty(typing, memory, count, kind):
    found = types.Array(kind.dtype, 1, "C")

    def generate(context, builder, signature, args):
        itemsize = word_of(context.get_abi_sizeof(context.get_data_type(found.dtype)))
        elements = builder.smul_with_overflow(args[1], itemsize)
        nbytes = builder.add(builder.extract_value(elements, 0), word_of(8 + 63))
        nbytes = builder.select(builder.extract_value(elements, 1), word_of(-1), nbytes)  # more than there ever is
        piece = call_c(builder, "PyMem_RawMalloc", _POINTER, nbytes)
        with builder.if_then(cgutils.is_null(builder, piece), likely=False):
            builder.ret(ir.Constant(ir.IntType(32), 1))
        builder.store(builder.load(args[0]), builder.bitcast(piece, _POINTER.as_pointer()))
        builder.store(piece, args[0])
        place = builder.and_(builder.add(builder.ptrtoint(piece, _SIZE), word_of(8 + 63)), word_of(-64))
        return _array(context, builder, found, builder.inttoptr(place, _POINTER), args[1])

    return found(memory, types.int64, kind), generate


def _array(context, builder, kind, place, count):
    made = context.make_array(kind)(context, builder)
    itemsize = word_of(context.get_abi_sizeof(context.get_data_type(kind.dtype)))
    made.data, made.nitems, made.itemsize = builder.bitcast(place, made.data.type), count, itemsize
    made.shape, made.strides = cgutils.pack_array(builder, [count]), cgutils.pack_array(builder, [itemsize])
    return made._getvalue()


# The passes of Numba that kernels need: these have no closures, no generators and no expressions of whole arrays.
_PASSES = (
    untyped_passes.TranslateByteCode,
    untyped_passes.FixupArgs,
    untyped_passes.IRProcessing,
    untyped_passes.GenericRewrites,
    untyped_passes.ReconstructSSA,
    typed_passes.NopythonTypeInference,
    typed_passes.PreLowerStripPhis,
    typed_passes.IRLegalization,
    typed_passes.AnnotateTypes,
    typed_passes.NativeLowering,
    typed_passes.NoPythonBackend,
)


class _Passes(PassManager):
    _ENFORCING = False  # no analysis is repeated behind every pass: the passes that need it repeat it


class _Pipeline(compiler.CompilerBase):
    def define_pipelines(self):
        passes = _Passes("kernel")
        for one in _PASSES:
            passes.add_pass(one, one.__name__)
        passes.finalize()
        return [passes]


# The typing context of Numba, asked once for each function and the types of its arguments.
class _Typing(type(cpu_target.typing_context)):  # type: ignore[misc]
    def resolve_function_type(self, function, args, kws):
        if kws:
            return super().resolve_function_type(function, args, kws)
        key = function, args
        if key not in self.resolved:
            self.resolved[key] = super().resolve_function_type(function, args, kws)
        return self.resolved[key]


def _typing():
    made = object.__new__(_Typing)
    made.__dict__ = {**cpu_target.typing_context.__dict__, "resolved": {}}
    return made


# Code that is kept instead of run. LLVM makes all passes that Numba asks for: with fewer passes loops are slower.
class _Library(codegen.JITCodeLibrary):
    def _finalize_final_module(self):
        self.code = self._codegen._tm.emit_object(self._final_module)
        self._finalized = True


@global_compiler_lock
def object_code(functions, add_entries):
    """Return object code with functions, given with their signatures, and the entries that ``add_entries`` adds."""
    context, typing = cpu_target.target_context, _typing()
    flags = compiler.Flags()
    cpu_target.options.parse_as_flags(flags, {"nopython": True, "nogil": True, "error_model": "numpy"})
    flags.nrt = False  # no array here belongs to Numba
    flags.no_cpython_wrapper = flags.no_cfunc_wrapper = flags.no_compile = True
    library = _Library(context.codegen(), NAME)
    described = []
    for function, signature in functions:
        arguments, result = signature.args, signature.return_type
        made = compiler.compile_extra(typing, context, function, arguments, result, flags, {}, library, _Pipeline)
        described.append(made.fndesc)
    module = context.create_module(NAME)
    add_entries(context, module, *described)
    library.add_ir_module(module)
    library.finalize()
    return library.code


def call_numba(context, builder, described, arguments):
    """Call a function of Numba; return its status and its result."""
    kind = context.call_conv.get_function_type(described.restype, described.argtypes)
    function = cgutils.get_or_insert_function(builder.module, kind, described.llvm_func_name)
    return context.call_conv.call_function(
        builder, function, described.restype, described.argtypes, arguments, attrs=("noinline",)
    )


def _free(builder, memory):
    test, free, end = (builder.append_basic_block() for _ in range(3))
    builder.branch(test)
    builder.position_at_end(test)
    piece = builder.load(memory)
    builder.cbranch(cgutils.is_null(builder, piece), end, free)
    builder.position_at_end(free)
    builder.store(builder.load(builder.bitcast(piece, _POINTER.as_pointer())), memory)
    call_c(builder, "PyMem_RawFree", ir.VoidType(), piece)
    builder.branch(test)
    builder.position_at_end(end)


def _add_entries(context, module, described):
    _add_entry_of_python(context, module, described)
    _add_entry_of_programs(context, module, described)


def _add_entry_of_python(context, module, described):
    """Add the function NAME, which Python calls (METH_FASTCALL) with arrays of NumPy and integers."""
    entry = ir.Function(module, ir.FunctionType(_POINTER, (_POINTER, _POINTER.as_pointer(), _SIZE)), NAME)
    builder = ir.IRBuilder(entry.append_basic_block())
    none, given, _ = entry.args
    memory = cgutils.alloca_once_value(builder, ir.Constant(_POINTER, None))
    values = []
    for at, kind in enumerate(described.argtypes[:-1]):
        one = builder.load(builder.gep(given, [word_of(at)]))
        if isinstance(kind, types.Array):
            # Every array of NumPy begins with the address of its elements, a number, and the address of its shape.
            fields = builder.bitcast(builder.gep(one, [word_of(object.__basicsize__)]), _POINTER.as_pointer())
            shape = builder.bitcast(builder.load(builder.gep(fields, [word_of(2)])), _SIZE.as_pointer())
            values.append(_array(context, builder, kind, builder.load(fields), builder.load(shape)))
        else:
            values.append(call_c(builder, "PyLong_AsLongLong", _SIZE, one))
    thread = call_c(builder, "PyEval_SaveThread", _POINTER)
    status, _ = call_numba(context, builder, described, [*values, memory])
    _free(builder, memory)
    call_c(builder, "PyEval_RestoreThread", ir.VoidType(), thread)
    with builder.if_then(status.is_error, likely=False):
        builder.ret(call_c(builder, "PyErr_NoMemory", _POINTER))
    call_c(builder, "Py_IncRef", ir.VoidType(), none)
    builder.ret(none)


def _add_entry_of_programs(context, module, described):
    """Add the function NAME_in_programs, which takes the addresses of all arrays, and the range of the tasks.

    It returns 0, or 1 if no memory is left. A kernel does not read the lengths of its arrays, so they are 0.
    """
    kind = ir.FunctionType(_SIZE, (_POINTER.as_pointer(), _SIZE, _SIZE))
    entry = ir.Function(module, kind, f"{NAME}_in_programs")
    builder = ir.IRBuilder(entry.append_basic_block())
    given, begin, end = entry.args
    memory = cgutils.alloca_once_value(builder, ir.Constant(_POINTER, None))
    arrays = [
        _array(context, builder, kind, builder.load(builder.gep(given, [word_of(at)])), word_of(0))
        for at, kind in enumerate(described.argtypes[:-3])
    ]
    status, _ = call_numba(context, builder, described, [*arrays, begin, end, memory])
    _free(builder, memory)
    builder.ret(builder.zext(status.is_error, _SIZE))


def kernel(signature):
    whole = signature.return_type(*signature.args, types.CPointer(types.voidptr))
    return lambda function: object_code([(function, whole)], _add_entries)
