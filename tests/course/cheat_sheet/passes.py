"""The rows whose words are facts of torch: of the hooks in a forward or a backward pass.

For each row the words under "It fires", "It can return" and "Trap", each with the facts behind them and their answers
(hookscope_course/history/facts.py), or with an error of the last table of the sheet.
"""

from __future__ import annotations

Words = tuple[str, dict[str, str]]

SAYS = "torch says"
CHANGES = "what_each_hook_changes"
STEP = "order_of_step"
GLOBAL = "order_of_global_hooks"

PASSES: dict[str, list[Words]] = {
    "module.register_forward_pre_hook": [
        ("at a call, before `forward`", {STEP: "forward_pre, forward(), forward, …"}),
        (
            "the new `args`, or one argument",
            {
                CHANGES: "module.register_forward_pre_hook: 60, 20, 30",
                "pre_hook_returns": "60",
                "pre_hook_returns_argument": "3 arguments",
            },
        ),
        ("a list is taken for one argument", {"pre_hook_returns_list": "1, the list itself"}),
    ],
    "module.register_forward_hook": [
        ("at a call, after `forward`", {STEP: "forward_pre, forward(), forward, …"}),
        ("the new output", {CHANGES: "module.register_forward_hook: 60, 20, 30", "forward_hook_returns": "60"}),
        ("a direct `forward(x)` skips it", {"forward_called_directly": "0"}),
    ],
    "module.register_full_backward_pre_hook": [
        ("before the output's gradient enters the module", {STEP: "…, y.grad, full_backward_pre, tensor weight, …"}),
        ("the new `grad_output`, a tuple", {CHANGES: "module.register_full_backward_pre_hook: 6, 20, 30"}),
        ("returning a tensor is an error", {"backward_hook_returns": "pre-hook, a tensor: RuntimeError…"}),
    ],
    "module.register_full_backward_hook": [
        (
            "when the gradients of the inputs are there",
            {STEP: "…, tensor weight, …, full_backward, tensor x, …", "full_hook_grad_input": "15, 10"},
        ),
        ("the new `grad_input`, a tuple", {CHANGES: "module.register_full_backward_hook: 6, 20, 3"}),
        ("an in-place `ReLU` right behind it is an error", {"full_hook_in_place_relu": "RuntimeError…"}),
    ],
    "tensor.register_hook": [
        ("when the tensor's gradient is complete", {"tensor_hook_gets": "5 · b + 2 · b²: 17"}),
        (
            "the new gradient, same shape and dtype",
            {CHANGES: "tensor.register_hook: 6, 20, 30", SAYS: "has changed the type of value"},
        ),
        (
            "on a weight: only this pass, not the sum in `.grad`",
            {"tensor_hook_two_passes": "the hook 3, 3; .grad 3, 6"},
        ),
    ],
    "tensor.register_post_accumulate_grad_hook": [
        (
            "when the gradient has been added to `.grad`",
            {"post_accumulate_two_passes": "3, 6", STEP: "…, weight.grad, post_accumulate_grad weight, …"},
        ),
        ("nothing; a value is an error", {SAYS: "should return None"}),
        ("a tensor that is not a leaf refuses it", {SAYS: "cannot be registered on non-leaf tensors"}),
    ],
    "node.register_prehook": [
        ("before the node runs, after the tensor's hooks", {"order_at_node": "tensor y, …, node_pre, node, …"}),
        ("the new `grad_outputs`, a tuple", {CHANGES: "node.register_prehook: 6, 20, 30"}),
        ("`tensor.grad` is kept before it", {"order_at_node": "tensor y, y.grad, node_pre, …"}),
    ],
    "node.register_hook": [
        ("after the node has run", {"order_at_node": "…, node_pre, node, tensor x"}),
        ("the new `grad_inputs`, a tuple", {CHANGES: "node.register_hook: 6, 20, 30"}),
        ("a leaf has no `grad_fn`", {SAYS: "'NoneType' object has no attribute 'register_hook'"}),
    ],
    "module.register_backward_hook": [
        ("when the last operation of `forward` has run backward", {"legacy_hook_order": "legacy, first product"}),
        ("the new `grad_input`, a tuple", {CHANGES: "module.register_backward_hook: 6, 20, 30"}),
        (
            "outdated: it sees only the last operation",
            {"legacy_block": "[1, 10, 8, 8]", "legacy_warning": "FutureWarning"},
        ),
    ],
    "register_module_forward_pre_hook": [
        ("before its own", {GLOBAL: "global forward_pre, forward_pre, …"}),
        ("as above", {CHANGES: "register_module_forward_pre_hook: 60, 20, 30"}),
    ],
    "register_module_forward_hook": [
        ("before its own", {GLOBAL: "…, global forward, forward, …"}),
        ("as above", {CHANGES: "register_module_forward_hook: 60, 20, 30"}),
    ],
    "register_module_full_backward_pre_hook": [
        ("before its own", {GLOBAL: "…, global full_backward_pre, full_backward_pre, …"}),
        ("as above", {CHANGES: "register_module_full_backward_pre_hook: 6, 20, 30"}),
    ],
    "register_module_full_backward_hook": [
        ("before its own", {GLOBAL: "…, global full_backward, full_backward, …"}),
        ("as above", {CHANGES: "register_module_full_backward_hook: 6, 20, 3"}),
    ],
    "register_module_backward_hook": [
        ("outdated", {"legacy_warning": "FutureWarning"}),
        ("as above", {CHANGES: "register_module_backward_hook: 6, 20, 30"}),
    ],
}
