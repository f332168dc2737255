"""The loop: batches in, steps of the optimizer, checkpoints and figures out."""

import contextlib
import fcntl
import math
import signal
import threading
import time
from pathlib import Path

import infinicore
from infinicore import nn

from ..amp import GradScaler, autocast
from ..autograd import no_grad
from ..data.collate import placed
from ..dispatch.generator import fork_rng
from ..distributed import DistributedDataParallel
from ..models import LanguageModel
from ..nn import hooks
from ..nn.utils.size import product_weights
from ..optim.lr_scheduler import ReduceLROnPlateau
from .diagnose import bad_gradient, bad_parameter, explain
from .record import Record, Watch
from .sides import side_of

RECORDED = 32_000_000  # parameters


def default_loss(model, batch):
    """The loss of a batch (input, target): a language model's own, else cross entropy of what the model returns."""
    inputs, targets = batch
    if isinstance(model.module if isinstance(model, DistributedDataParallel) else model, LanguageModel):
        return model.loss(inputs, targets)
    return nn.functional.cross_entropy(model(inputs), targets)


class _Data:
    """A loader walked for ever; its position is that of the loader. Epochs draw their order within `random()`."""

    def __init__(self, loader, random):
        self.loader, self.random, self._iterator = loader, random, None

    def __next__(self):
        for _ in range(2):
            try:
                if self._iterator is None:
                    with self.random():  # the first batch with it: a generator begins there
                        self._iterator = iter(self.loader)
                        return next(self._iterator)
                return next(self._iterator)
            except StopIteration:
                self._iterator = None
        raise ValueError("`train_data` is empty: it gives no batch")

    def state_dict(self):
        return self.loader.state_dict()

    def load_state_dict(self, state):
        self._iterator = None
        self.loader.load_state_dict(state)


@contextlib.contextmanager
def _interrupts():
    """Yields a list: the first SIGINT or SIGTERM is put there, for the loop to see between two steps.

    A second one is a KeyboardInterrupt at once. Handlers that a program has set are left alone.
    """
    caught, before = [], {}

    def note(number, frame):
        if caught:
            raise KeyboardInterrupt
        caught.append(number)

    if threading.current_thread() is threading.main_thread():  # the only one that may set handlers, and gets signals
        for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
            if signal.getsignal(number) is usual:
                before[number] = signal.signal(number, note)
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _alone(folder):
    """Holds the folder of a run: two processes that train in one folder would mix two runs."""
    if folder is None:
        yield
        return
    Path(folder).mkdir(parents=True, exist_ok=True)
    with open(Path(folder) / ".lock", "w") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # ends with the process, and is not a forked worker's
        except (BlockingIOError, PermissionError):
            raise ValueError(
                f"another process is training in {folder}: wait for it, or choose another folder"
            ) from None
        except OSError:  # a file system without locks
            pass
        yield


def _check_numbers(**values):
    for name, value in values.items():
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise ValueError(f"`{name}` must be a positive integer, got {value!r}")


class Trainer:
    """Trains `model` on batches of `train_data` (a `DataLoader`) for `steps` steps of `optimizer`, or for `epochs`.

    `model` is a module, or a `distributed.ParallelModel`: then every rank makes the same Trainer, with batches of the
    same whole size, of which it computes its part; losses, norms and rates are those of all, and rank 0 reports.

    Batches go to the device where the model lies. A step takes `accumulate` of them, whose losses are averaged;
    `loss(model, batch)` gives one (`default_loss`).
    `clip` bounds the norm of all gradients. `amp` ("bfloat16", "float16" or None) runs forward passes under autocast,
    float16 with a `GradScaler`. Every `eval_every` steps and at the end `eval_data` is evaluated in evaluation mode;
    `patience` evaluations without a new least loss end the run. `scheduler` steps with the optimizer, a
    `ReduceLROnPlateau` with each evaluation. With a `folder`, rows go to log.jsonl (log.csv and loss.png at the end),
    and checkpoints are written every `save_every` steps, at the end, and on an interrupt or SIGTERM; the newest `keep`
    stay, and `fit` continues from the newest one. What follows is bit for bit what an unbroken run gives.
    `callbacks` are called as `callback(trainer, row)` with each row that is logged; `trainer.stopped = True` in one
    ends the run after the step.

    Forward and backward passes are recorded and replayed (`infinicore.recorded`) with `recorded=True`, or with None for
    a model of `infinicore.models` of up to 32 million parameters with its own loss: Python is a tenth of a step of 0.8
    million, and 0.3 % of one of 124 million. Other models, and modules of others in them, may do in Python what a
    replay would leave out. Callbacks may freeze parameters, and change modes and dropout, between steps.
    """

    def __init__(
        self,
        model,
        optimizer,
        train_data,
        *,
        steps=None,
        epochs=None,
        eval_data=None,
        scheduler=None,
        loss=default_loss,
        accumulate=1,
        clip=None,
        amp=None,
        eval_every=None,
        patience=None,
        folder=None,
        save_every=None,
        keep=3,
        log_every=10,
        progress=True,
        callbacks=(),
        recorded=None,
    ):
        if (steps is None) == (epochs is None):
            raise ValueError(f"give either `steps` or `epochs`, got {steps} and {epochs}")
        _check_numbers(steps=steps, accumulate=accumulate, eval_every=eval_every, patience=patience)
        _check_numbers(save_every=save_every, keep=keep, log_every=log_every)
        if accumulate is None or log_every is None:
            raise ValueError(f"`accumulate` and `log_every` must be integers, got {accumulate} and {log_every}")
        if clip is not None and not clip > 0:
            raise ValueError(f"`clip` must be above 0, or None for no clipping, got {clip}")
        if amp is not None and infinicore.dtype(amp) not in (infinicore.bfloat16, infinicore.float16):
            raise ValueError(f"`amp` must be 'bfloat16', 'float16' or None, got {amp!r}")
        if recorded and amp is not None and infinicore.dtype(amp) is infinicore.float16:
            raise ValueError("`recorded` steps cannot change their scale as `amp` float16 does: use bfloat16")
        if save_every is not None and folder is None:
            raise ValueError(f"`save_every` is {save_every}, but there is no `folder` to save checkpoints in")
        if eval_every is not None and eval_data is None:
            raise ValueError(f"`eval_every` is {eval_every}, but there is no `eval_data`")
        for name, value in (("patience", patience), ("scheduler", isinstance(scheduler, ReduceLROnPlateau) or None)):
            if value is not None and eval_every is None:
                raise ValueError(f"`{name}` looks at evaluations, but nothing is evaluated: give `eval_every`")
        if steps is None:
            steps = math.ceil(epochs * len(train_data) / accumulate)
        self.model, self.optimizer, self.scheduler = model, optimizer, scheduler
        self.side = side_of(model)
        self.module = self.side.module
        if loss is not default_loss and getattr(model, "pipeline", None) is not None:
            raise ValueError("`loss` is that of the pipeline here: give it to `ParallelModel` instead")
        self.data = _Data(self.side.divide("train_data", train_data), self.side.shared_random)
        self.eval_data = None if eval_data is None else self.side.divide("eval_data", eval_data)
        self.loss = loss
        self.steps, self.accumulate, self.clip = steps, accumulate, clip
        self.amp = None if amp is None else infinicore.dtype(amp)
        self.scaler = GradScaler() if self.amp is infinicore.float16 else None
        self.eval_every, self.patience, self.folder = eval_every, patience, folder
        self.save_every, self.keep, self.log_every = save_every, keep, log_every
        self.progress, self.callbacks = progress and self.side.leads, tuple(callbacks)
        self.recorded, self._replay = recorded, None
        self.step, self.best, self.since_best, self.stopped = 0, math.inf, 0, False
        self._window = []  # losses since the last row
        self._saved = None  # the step of the newest checkpoint
        self.record, self._peak_flops, self._length = None, None, None

    # ---- parts of a step ----

    @property
    def device(self):
        """Where the model lies, and batches go."""
        return next(iter(self.model.parameters())).device

    def _autocast(self):
        return contextlib.nullcontext() if self.amp is None else autocast(dtype=self.amp)

    def _forward(self, batch):
        return self.side.forward(batch, self.loss, self._autocast)

    def _gradients(self, batch, divisor, sync):
        """The loss of a batch; the gradients of it / `divisor` are added to those of the batches before."""
        options = {"divisor": divisor, "scaler": self.scaler, "within": self._autocast, "sync": sync}
        return self.side.backward(batch, self.loss, **options)

    def _state(self):
        """What a callback may change of the model from one step to the next: which parts train, and how."""
        modules = [f"{module.training:d}{getattr(module, 'p', '')}" for module in self.module.modules()]
        modules += [f"{parameter.requires_grad:d}" for parameter in self.module.parameters()]
        return f"{getattr(self.module, 'gradient_checkpointing', False):d}{','.join(modules)}"

    def _recordable(self):
        """Whether nothing but launches happens in a step, as far as we know the model and the loss."""
        return (
            self.scaler is None
            and self.loss is default_loss
            and isinstance(self.module, LanguageModel)
            and all(type(module).__module__.startswith("infinicore.") for module in self.module.modules())
            and sum(p.numel() for p in self.module.parameters()) <= RECORDED
            and self.side.replays
            and not any(hooks.registered(module) for module in self.module.modules())
        )

    def train_step(self):
        """One step: (mean loss, norm of the gradients or None, tokens or samples)."""
        total, count = 0.0, 0
        for number in range(1, self.accumulate + 1):
            batch, portion = self._placed(next(self.data))
            divisor = self.accumulate / portion.factor if portion.factor else math.inf
            how = batch, divisor, number == self.accumulate
            replay = self._replay is not None and portion.alike
            loss = self._replay(*how, self._state()) if replay else self._gradients(*how)
            value = self.side.mean(loss.item(), portion)
            if not math.isfinite(value):
                again = lambda b=batch: self._forward(b)
                raise ValueError(explain(self.module, again, self.step + 1, value, batch, self.side.first))
            total += value / self.accumulate
            count += portion.size
        if self.scaler is not None and (self.clip is not None or self.side.ranks > 1):
            self.scaler.unscale_(self.optimizer)
            self.scaler.agree(self.optimizer, self.side.most)
        norm = None if self.clip is None else self._clip(total)
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        if self.scheduler is not None and not isinstance(self.scheduler, ReduceLROnPlateau):
            self.scheduler.step()
        self.optimizer.zero_grad()
        return total, norm, count

    def _clip(self, loss):
        """Bound the norm of the gradients; returns it."""
        norm = self.side.clip(self.clip)
        if not math.isfinite(norm) and self.scaler is None:  # which leaves such a step out
            raise ValueError(bad_gradient(self.model, self.step + 1, loss, norm, self.side.first))
        return norm

    def _placed(self, found):
        """(batch, its `Portion`) of what the divided data gave."""
        batch, portion = self.side.portion(found, self._counts)
        return placed(batch, self.device), portion

    def _counts(self, batch):
        """(what a mean loss of a batch divides by, its tokens or samples)."""
        first = batch[0] if isinstance(batch, (tuple, list)) else batch
        if not hasattr(first, "shape") or not first.shape:
            return 1, 1
        if isinstance(self.module, LanguageModel) and first.ndim == 2:
            self._length = first.shape[1]
            own = self.side.ranks > 1 and self.loss is default_loss
            return self.module.labels(batch[1]) if own else first.shape[0], first.numel()
        return first.shape[0], first.shape[0]

    @no_grad()
    def evaluate(self):
        """The mean loss over `eval_data`, in evaluation mode; the random state stays as it was."""
        modes = [(module, module.training) for module in self.module.modules()]
        self.module.eval()
        total, count = 0.0, 0
        try:
            with fork_rng(0):
                for found in self.eval_data:
                    batch, portion = self._placed(found)
                    total += self.side.mean(self._forward(batch).item(), portion) * portion.size
                    count += portion.size
        finally:
            for module, mode in modes:
                module.training = mode
        if count == 0:
            raise ValueError("`eval_data` is empty: it gives no batch")
        return total / count

    # ---- the run ----

    def fit(self, resume=True):
        """Run to the last step; returns the rows of the log.

        With a folder that holds checkpoints the run goes on from the newest (`resume=False`: from where the trainer is,
        a new one at step 0; later checkpoints are deleted when the first one is saved). An interrupt or SIGTERM lets
        the step end and saves a checkpoint, then raises KeyboardInterrupt, or SystemExit with 143. Raises ValueError
        for a loss that is not finite, and says where it comes from.
        """
        with _alone(self.folder if self.side.leads else None):
            return self._fit(resume)

    def _fit(self, resume):
        if resume and self.folder is not None and self.side.latest(self.folder) is not None:
            self.load(self.folder)
        self.record = Record(self.folder if self.side.leads else None, resumed_from=self.step)
        watch = Watch(self.steps, self.progress)
        self.module.train()
        record = self._recordable() if self.recorded is None else self.recorded
        gradients = lambda batch, divisor, sync, state: self._gradients(batch, divisor, sync)
        self._replay = infinicore.recorded(gradients) if record else None
        self.optimizer.zero_grad()  # of a step that was broken off
        try:
            with _interrupts() as caught:
                signalled = self._run(watch, caught)
                if signalled and self.folder is not None:
                    self.save()
            watch.close()
            self.record.close()
        except BaseException:
            watch.close()
            with contextlib.suppress(OSError):  # the disk is full: that error is on its way already
                self.record.close()
            raise
        if signalled:
            raise KeyboardInterrupt if signalled == signal.SIGINT else SystemExit(128 + signalled)
        return self.record.rows

    def _run(self, watch, caught):
        """Steps until the end, or until `caught` holds a signal on one of the ranks; returns its number, or 0."""
        began, seen = time.perf_counter(), 0
        while True:
            signalled = int(self.side.most(caught[0] if caught else 0))
            self.stopped = bool(self.side.most(self.stopped))
            if self.step >= self.steps or self.stopped or signalled:
                return signalled
            loss, norm, count = self.train_step()
            self.step += 1
            seen += count
            self._window.append(loss)
            last = self.step == self.steps
            if self.step % self.log_every == 0 or last:
                rate = seen / (time.perf_counter() - began)
                row = self._row(sum(self._window) / len(self._window), norm, rate)
                self._window = []
                self._log(row, watch, last)
                began, seen = time.perf_counter(), 0
            paused = time.perf_counter()
            if self.eval_every is not None and (self.step % self.eval_every == 0 or last):
                self._evaluated(self.evaluate(), watch)
            if self.folder is not None:
                due = self.save_every is not None and self.step % self.save_every == 0
                if due or last or self.stopped:
                    self.save()
            began += time.perf_counter() - paused

    def _row(self, loss, norm, rate):
        row = {"step": self.step, "loss": loss, "lr": float(self.optimizer.param_groups[0]["lr"])}
        if norm is not None:
            row["grad_norm"] = norm
        if isinstance(self.module, LanguageModel):
            row["tokens_per_s"] = rate
            flops = _flops(self.side.product_weights, self.module.config, self._length)
            row["mfu"] = rate * flops / self.peak_flops()
        else:
            row["samples_per_s"] = rate
        return row

    def _log(self, row, watch, force=False):
        self.record.add(row)
        watch.update(self.step, {k: v for k, v in row.items() if k != "step"}, force)
        for callback in self.callbacks:
            callback(self, row)

    def _evaluated(self, loss, watch):
        if loss < self.best:
            self.best, self.since_best = loss, 0
        else:
            self.since_best += 1
            self.stopped = self.stopped or self._is_late()
        if isinstance(self.scheduler, ReduceLROnPlateau):
            self.scheduler.step(loss)
        self._log({"step": self.step, "eval_loss": loss}, watch, True)

    def _is_late(self):
        return self.patience is not None and self.since_best >= self.patience

    def peak_flops(self):
        """FLOP/s of the largest product, of all ranks, in the dtype of the run, measured once: what MFU refers to."""
        if self._peak_flops is None:
            size = 1024
            own = infinicore.Generator(0)  # the default one is the run's
            a = infinicore.randn((size, size), generator=own).to(self.device, self.amp or infinicore.float32)
            times = []
            for _ in range(12):
                began = time.perf_counter()
                infinicore.matmul(a, a)
                infinicore.sync_device(self.device)
                times.append(time.perf_counter() - began)
            self._peak_flops = self.side.sum(2 * size**3 / min(times))
        return self._peak_flops

    # ---- checkpoints ----

    def state_dict(self):
        """What the trainer itself knows of the run, for its checkpoints."""
        return {"best": self.best, "since_best": self.since_best, "window": list(self._window)}

    def load_state_dict(self, state):
        """Take over what `state_dict` returned."""
        self.best, self.since_best, self._window = state["best"], state["since_best"], list(state["window"])
        self.stopped = self._is_late()

    def _parts(self):
        found = {"data": self.data, "scheduler": self.scheduler, "scaler": self.scaler, "trainer": self}
        return {name: part for name, part in found.items() if part is not None}

    def save(self):
        """Write a checkpoint of this moment into `folder`; returns its path.

        Raises ValueError where a parameter is not finite: what was saved before is worth more.
        """
        if self.folder is None:
            raise ValueError("there is no `folder` to save checkpoints in: give one to the Trainer")
        done = self._saved is not None and self._saved[0] == self.step and self._saved[1].exists()
        if not self.side.most(not done):
            return self._saved[1]
        found = self.side.first(bad_parameter(self.model))
        if found is not None:
            raise ValueError(
                f"parameter `{found}` holds NaN or infinity after step {self.step}, so no checkpoint of it is written: "
                "lower the learning rate or clip gradients, and continue from the last one"
            )
        path = self.side.save(self.folder, self.step, self.optimizer, self.keep, self._parts())
        self._saved = self.step, path
        return path

    def load(self, path):
        """Go back (or ahead) to a checkpoint; `fit(resume=False)` goes on from there."""
        self._saved = None
        self.step = self.side.load(path, self.optimizer, self._parts())


def flops_per_token(model, sequence_length=None):
    """Operations of a training step for each token: 6 for each weight of a product, and attention's 12 L H D T.

    The embeddings are looked up, so only the head counts, tied or not (Chowdhery et al., arXiv 2204.02311, appendix B).
    """
    return _flops(product_weights(model), model.config, sequence_length)


def _flops(weights, config, sequence_length):
    length = config.context if sequence_length is None else sequence_length
    return 6 * weights + 12 * config.num_hidden_layers * config.num_attention_heads * config.head_dim * length
