"""The rows whose words are facts of torch: of the hooks in a forward or a backward pass.

For each row the words under "It fires", "It can return" and "Trap", each with the facts behind them and their answers
(hookscope_course/history/facts.py), or with an error of the last table of the sheet.
"""

from __future__ import annotations

Words = tuple[str, dict[str, str]]

SAYS = "torch says"
CHANGES = "what_each_hook_changes"
STEP = "order_of_step"

PASSES: dict[str, list[Words]] = {
    "module.register_forward_pre_hook": [
        ("at a call, before `forward`", {STEP: "forward_pre, forward(), forward, …"}),
        (
            "`args`, or one argument",
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
        ("an output", {CHANGES: "module.register_forward_hook: 60, 20, 30", "forward_hook_returns": "60"}),
        ("a direct `forward(x)` skips it", {"forward_called_directly": "0"}),
    ],
    "module.register_full_backward_pre_hook": [
        ("before the output's gradient enters the module", {STEP: "…, y.grad, full_backward_pre, tensor weight, …"}),
        ("`grad_output`, a tuple", {CHANGES: "module.register_full_backward_pre_hook: 6, 20, 30"}),
        ("returning a tensor is an error", {"backward_hook_returns": "pre-hook, a tensor: RuntimeError…"}),
    ],
    "module.register_full_backward_hook": [
        (
            "when the gradients of the inputs are there",
            {STEP: "…, tensor weight, …, full_backward, tensor x, …", "full_hook_grad_input": "15, 10"},
        ),
        ("`grad_input`, a tuple", {CHANGES: "module.register_full_backward_hook: 6, 20, 3"}),
        ("an in-place `ReLU` after it is an error", {"full_hook_in_place_relu": "RuntimeError…"}),
    ],
    "tensor.register_hook": [
        ("when the tensor's gradient is complete", {"tensor_hook_gets": "5 · b + 2 · b²: 17"}),
        (
            "a gradient",
            {CHANGES: "tensor.register_hook: 6, 20, 30"},
        ),
        (
            "on a weight: not the sum in `.grad`",
            {"tensor_hook_two_passes": "the hook 3, 3; .grad 3, 6"},
        ),
    ],
    "tensor.register_post_accumulate_grad_hook": [
        (
            "after the gradient is added to `.grad`",
            {"post_accumulate_two_passes": "3, 6", STEP: "…, weight.grad, post_accumulate_grad weight, …"},
        ),
        ("nothing; a value is an error", {SAYS: "should return None"}),
        ("a tensor that is not a leaf refuses it", {SAYS: "cannot be registered on non-leaf tensors"}),
    ],
    "node.register_prehook": [
        ("before the node, after the tensor's hooks", {"order_at_node": "tensor y, …, node_pre, node, …"}),
        ("`grad_outputs`, a tuple", {CHANGES: "node.register_prehook: 6, 20, 30"}),
        ("`tensor.grad` is kept before it", {"order_at_node": "tensor y, y.grad, node_pre, …"}),
    ],
    "node.register_hook": [
        ("after the node has run", {"order_at_node": "…, node_pre, node, tensor x"}),
        ("`grad_inputs`, a tuple", {CHANGES: "node.register_hook: 6, 20, 30"}),
        ("a leaf has no `grad_fn`", {SAYS: "'NoneType' object has no attribute 'register_hook'"}),
    ],
}
