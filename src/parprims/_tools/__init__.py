"""Tools for users: the comparison of methods, the kernels of a call, compilation ahead."""
