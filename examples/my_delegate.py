"""The delegate guide's example in both forms: computes CONV_2D and MEAN of floats with NumPy."""

import numpy as np

from penstock import delegates


def conv_2d(options, x, filters, bias):
    window, steps = filters.shape[1:3], (options["stride_h"], options["stride_w"])
    if options["padding"] == "SAME":
        missing = (-(-np.array(x.shape[1:3]) // steps) - 1) * steps + window - x.shape[1:3]
        x = np.pad(x, [(0, 0), *((m // 2, m - m // 2) for m in np.maximum(missing, 0)), (0, 0)])
    patches = np.lib.stride_tricks.sliding_window_view(x, window, axis=(1, 2))
    y = np.einsum("nhwcij,oijc->nhwo", patches[:, :: steps[0], :: steps[1]], filters) + bias
    return np.maximum(y, 0) if options["fused_activation_function"] == "RELU" else y


def mean(options, x, axes):
    return x.mean(axis=tuple(np.ravel(axes)), keepdims=options["keep_dims"])


def takes(kind, node, context):
    given, options = [context.tensor(i) for i in node.inputs if i >= 0], node.attributes
    if kind.builtin_name != "CONV_2D" or [t.dtype for t in given] != ["float32"] * 3:
        return kind.builtin_name == "MEAN" and given[0].dtype == "float32"
    groups = given[0].shape[3] // given[1].shape[3]
    plain = {groups, options["dilation_h_factor"], options["dilation_w_factor"]} == {1}
    return plain and options["fused_activation_function"] in ("NONE", "RELU")


class MyKernel(delegates.DelegateKernel):
    def init(self, context, params):
        self.nodes = [context.node_and_registration(index) for index in params.nodes]
        return self

    def invoke(self, context, node):
        values = {index: context.tensor(index).data for index in node.inputs}
        for inner, kind in self.nodes:
            compute = {"CONV_2D": conv_2d, "MEAN": mean}[kind.builtin_name]
            values[inner.outputs[0]] = compute(inner.attributes, *map(values.get, inner.inputs))
        for index in node.outputs:
            context.tensor(index).data[...] = values[index]


class MyDelegate(delegates.SimpleDelegate):
    create_kernel = MyKernel
    is_node_supported = staticmethod(takes)


class MyRawDelegate(delegates.Delegate):
    def prepare(self, context):
        kinds = {i: context.node_and_registration(i)[::-1] for i in context.execution_plan}
        mine = [i for i, found in kinds.items() if takes(*found, context)]
        init, invoke = lambda *p: MyKernel().init(*p), lambda c, n: n.user_data.invoke(c, n)
        functions = delegates.DelegateRegistration("Mine", init=init, invoke=invoke)
        context.replace_node_subsets_with_delegate_kernels(functions, mine, self)

    def copy_from_buffer_handle(self, context, handle, tensor):
        raise NotImplementedError("this delegate keeps no buffers")
