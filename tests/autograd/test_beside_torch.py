"""The API of autograd and `func` beside PyTorch on unusual arguments: results, dtypes, graphs, and what is refused."""

import pytest

from . import (  # noqa: F401
    cases_backward,
    cases_func,
    cases_function,
    cases_function_results,
    cases_grad,
    cases_graph,
    cases_hooks,
    cases_modes,
    cases_vmap,
)
from .beside_torch import CASES, compared

torch = pytest.importorskip("torch")

# Where something else is meant to come out, and why; docs/from-pytorch.md says it to users.
MEANT = {
    # values and gradients are right here, where PyTorch refuses
    "backward_gradset_dtype": "`.grad` may have another dtype, as float32 gradients of 16-bit parameters do",
    "version_chunk_inplace": "writing to one of several views: gradients follow",
    "version_unbind_inplace": "writing to one of several views: gradients follow",
    "function_ret_view_inplace": "writing to a view that a function returned: gradients follow",
    "function_ret_list": "a list of results is a tuple of them, with gradients",
    "function_vmap_norule": "`vmap` of a function without `generate_vmap_rule`",
    "checkpoint_grad_re": "one way to checkpoint, with which `grad` works",
    "functional_list": "lists are taken for tuples",
    "functional_jac_complex": "Jacobians of complex numbers",
    "functional_jac_empty": "Jacobians of no elements",
    "functional_jac_fwd_cg": "`strategy` changes nothing",
    "functional_jac_fwd_nv": "`strategy` changes nothing",
    "vmap_in_list": "lists are taken for tuples",
    "vmap_out_unbatched_dim": "a result that all samples share along any dim",
    "vmap_index8": "an index of each sample in a function that is differentiated",
    "vmap_function_hess": "second derivatives without a `jvp`",
    "gradcheck_out_int": "results of bools are left out",
    "gradcheck_undefined": "undefined gradients are not tried",
    "hook_post_ret": "what a hook after accumulation returns is not looked at",
    # inference mode is `no_grad`: there are no inference tensors
    "mode_inf": "no inference tensors",
    "mode_inf_save": "no inference tensors",
    "mode_inf_inplace": "no inference tensors",
    "mode_inf_rg": "no inference tensors",
    "mode_inf_enable": "`enable_grad` inside of `inference_mode` records",
    # refused here
    "backward_ng_view": "a view that was made under `no_grad` is a tensor of its own, whose writes nobody looks at",
    "version_data": "writing through `.data` counts, so a saved tensor that changed is an error, not a wrong gradient",
    "grad_twice_add": "a freed graph is freed, also where nothing was saved",
    "checkpoint_gg": "second derivatives through a checkpoint",
    "saved_edge": "no `get_gradient_edge`",
    "saved_edge_out": "no `get_gradient_edge`",
    "saved_mutate": "no `allow_mutation_on_saved_tensors`",
    "saved_queue": "no `Variable._execution_engine`",
    # details of the graph
    "node_next": "numbers have no edges",
    "hook_node": "numbers have no edges",
    "function_kwargs": "keywords of `apply` are no inputs; PyTorch then records `forward` itself",
    "functional_jac_fwd": "PyTorch's result requires gradients without `create_graph`",
    "functional_hess_fwd": "PyTorch's result requires gradients without `create_graph`",
}


@pytest.mark.parametrize("function", CASES, ids=lambda f: f.__name__)
@pytest.mark.filterwarnings("ignore")
def test_case(function):
    found = compared(function, torch)
    assert (found is None) != (function.__name__ in MEANT), found
