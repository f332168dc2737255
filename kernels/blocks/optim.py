"""What optimizers hand to kernels: lists of tensors, the table of a fused step, and the numbers of a group."""

from . import Block

# ---- many tensors in one launch: norms, scaling, clamping ----

UNIT = 16384  # elements of a tensor that are summed as one, on any number of threads; a slice counts in them
MANY = Block("result? total? | number:f64=0.0 tensors[]")
TENSOR = Block("x | numel")
FINISH = Block("partial y | count kind root:f64")

# ---- fused steps ----

ALIGN = 64  # tensors count as multiples of this, so that every slice begins on a cache line
STEP = Block("table | rows factor:f64")  # `factor` of all gradients

# A row of the table, one for each parameter. Addresses: of the values, of the gradient (0: the parameter rests), of the
# rounded copy (or 0), of up to three states (or 0), of the group's numbers (float64), of the step count (float32);
# `fresh` says that the first state has no value yet.
PARAMETER = Block("| values gradient copy=0 first=0 second=0 third=0 group step=0 numel fresh=0")

# The numbers of a group, all float64; `sign` is -1 where a step maximises.
SGD = Block("| lr momentum dampening weight_decay nesterov sign")
ADAM = Block("| lr beta1 beta2 eps weight_decay decoupled amsgrad sign")
ADAGRAD = Block("| lr lr_decay weight_decay eps sign")
RMSPROP = Block("| lr alpha eps weight_decay momentum centered sign")
LION = Block("| lr beta1 beta2 weight_decay sign")
ADAMAX = Block("| lr beta1 beta2 eps weight_decay sign")
RADAM = Block("| lr beta1 beta2 eps weight_decay decoupled sign")
ADADELTA = Block("| lr rho eps weight_decay sign")
RPROP = Block("| less more least most sign")
