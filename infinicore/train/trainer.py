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
from ..models import LanguageModel
from ..nn import hooks
from ..optim.lr_scheduler import ReduceLROnPlateau
from .checkpoint import latest, load_checkpoint, save_checkpoint
from .diagnose import bad_gradient, bad_parameter, explain
from .record import Record, Watch

RECORDED = 32_000_000  # parameters


def default_loss(model, batch):
    """The loss of a batch (input, target): a language model's own, else cross entropy of what the model returns."""
    inputs, targets = batch
    if isinstance(model, LanguageModel):
        return model.loss(inputs, targets)
    return nn.functional.cross_entropy(model(inputs), targets)


class _Data:
    """A loader walked for ever; its position is that of the loader."""

    def __init__(self, loader):
        self.loader, self._iterator = loader, None

    def __next__(self):
        for _ in range(2):
            if self._iterator is None:
                self._iterator = iter(self.loader)
            try:
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
        self.data, self.eval_data, self.loss = _Data(train_data), eval_data, loss
        self.steps, self.accumulate, self.clip = steps, accumulate, clip
        self.amp = None if amp is None else infinicore.dtype(amp)
        self.scaler = GradScaler() if self.amp is infinicore.float16 else None
        self.eval_every, self.patience, self.folder = eval_every, patience, folder
        self.save_every, self.keep, self.log_every = save_every, keep, log_every
        self.progress, self.callbacks = progress, tuple(callbacks)
        self.recorded, self._replay = recorded, None
        self.step, self.best, self.since_best, self.stopped = 0, math.inf, 0, False
        self._window = []  # losses since the last row
        self._saved = None  # the step of the newest checkpoint
        self.record, self._peak_flops, self._length = None, None, None

    # ---- parts of a step ----

    @property
    def device(self):
        """Where the model lies, and batches go."""
        return next(self.model.parameters()).device

    def _autocast(self):
        return contextlib.nullcontext() if self.amp is None else autocast(dtype=self.amp)

    def _forward(self, batch):
        with self._autocast():
            return self.loss(self.model, batch)

    def _gradients(self, batch):
        """The loss of a batch, whose gradients are added to those of the batches before."""
        loss = self._forward(batch)
        scaled = loss / self.accumulate if self.accumulate > 1 else loss
        (scaled if self.scaler is None else self.scaler.scale(scaled)).backward()
        return loss

    def _state(self):
        """What a callback may change of the model from one step to the next: which parts train, and how."""
        modules = [f"{module.training:d}{getattr(module, 'p', '')}" for module in self.model.modules()]
        modules += [f"{parameter.requires_grad:d}" for parameter in self.model.parameters()]
        return f"{getattr(self.model, 'gradient_checkpointing', False):d}{','.join(modules)}"

    def _recordable(self):
        """Whether nothing but launches happens in a step, as far as we know the model and the loss."""
        return (
            self.scaler is None
            and self.loss is default_loss
            and isinstance(self.model, LanguageModel)
            and all(type(module).__module__.startswith("infinicore.") for module in self.model.modules())
            and sum(p.numel() for p in self.model.parameters()) <= RECORDED
            and all(p.hooks is None for p in self.model.parameters())
            and not any(hooks.registered(module) for module in self.model.modules())
        )

    def train_step(self):
        """One step: (mean loss, norm of the gradients or None, tokens or samples)."""
        total, count = 0.0, 0
        for _ in range(self.accumulate):
            batch = placed(next(self.data), self.device)
            loss = self._gradients(batch) if self._replay is None else self._replay(batch, self._state())
            value = loss.item()
            if not math.isfinite(value):
                again = lambda b=batch: self._forward(b)
                raise ValueError(explain(self.model, again, self.step + 1, value, batch))
            total += value / self.accumulate
            count += self._size(batch)
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
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        nn.utils.clip.check_whole(self.model.parameters())
        norm = nn.utils.get_total_norm([p.grad for p in self.model.parameters() if p.grad is not None]).item()
        if math.isfinite(norm):
            nn.utils.clip_grads_with_norm_(self.model.parameters(), self.clip, norm)
        elif self.scaler is None:  # which leaves such a step out
            raise ValueError(bad_gradient(self.model, self.step + 1, loss, norm))
        return norm

    def _size(self, batch):
        """Tokens of a batch of ids, else samples."""
        first = batch[0] if isinstance(batch, (tuple, list)) else batch
        if not hasattr(first, "shape") or not first.shape:
            return 1
        if isinstance(self.model, LanguageModel) and first.ndim == 2:
            self._length = first.shape[1]
            return first.numel()
        return first.shape[0]

    @no_grad()
    def evaluate(self):
        """The mean loss over `eval_data`, in evaluation mode; the random state stays as it was."""
        modes = [(module, module.training) for module in self.model.modules()]
        self.model.eval()
        total, count = 0.0, 0
        try:
            with fork_rng(0):
                for batch in self.eval_data:
                    rows = len(batch[0]) if isinstance(batch, (tuple, list)) else 1
                    total += self._forward(placed(batch, self.device)).item() * rows
                    count += rows
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
        with _alone(self.folder):
            return self._fit(resume)

    def _fit(self, resume):
        if resume and self.folder is not None and latest(self.folder) is not None:
            self.load(self.folder)
        self.record = Record(self.folder, resumed_from=self.step)
        watch = Watch(self.steps, self.progress)
        self.model.train()
        record = self._recordable() if self.recorded is None else self.recorded
        self._replay = infinicore.recorded(lambda batch, state: self._gradients(batch)) if record else None
        self.optimizer.zero_grad()  # of a step that was broken off
        try:
            with _interrupts() as caught:
                self._run(watch, caught)
                if caught and self.folder is not None:
                    self.save()
            watch.close()
            self.record.close()
        except BaseException:
            watch.close()
            with contextlib.suppress(OSError):  # the disk is full: that error is on its way already
                self.record.close()
            raise
        if caught:
            raise KeyboardInterrupt if caught[0] == signal.SIGINT else SystemExit(128 + caught[0])
        return self.record.rows

    def _run(self, watch, caught):
        """Steps until the end, or until `caught` holds a signal."""
        began, seen = time.perf_counter(), 0
        while self.step < self.steps and not self.stopped and not caught:
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
        if isinstance(self.model, LanguageModel):
            row["tokens_per_s"] = rate
            row["mfu"] = rate * flops_per_token(self.model, self._length) / self.peak_flops()
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
        """FLOP/s of the largest product of this machine in the dtype of the run, measured once: what MFU refers to."""
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
            self._peak_flops = 2 * size**3 / min(times)
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
        if self._saved is not None and self._saved[0] == self.step and self._saved[1].exists():
            return self._saved[1]
        found = bad_parameter(self.model)
        if found is not None:
            raise ValueError(
                f"parameter `{found}` holds NaN or infinity after step {self.step}, so no checkpoint of it is written: "
                "lower the learning rate or clip gradients, and continue from the last one"
            )
        path = save_checkpoint(self.folder, self.step, self.model, self.optimizer, keep=self.keep, **self._parts())
        self._saved = self.step, path
        return path

    def load(self, path):
        """Go back (or ahead) to a checkpoint; `fit(resume=False)` goes on from there."""
        self._saved = None
        self.step = load_checkpoint(path, self.model, self.optimizer, **self._parts())


def flops_per_token(model, sequence_length=None):
    """Operations of a training step for each token: 6 for each weight of a product, and attention's 12 L H D T.

    The embeddings are looked up, so only the head counts, tied or not (Chowdhery et al., arXiv 2204.02311, appendix B).
    """
    config = model.config
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    weights = sum(p.numel() for p in model.parameters() if p.ndim >= 2 and id(p) not in tables)
    if id(model.lm_head.weight) in tables:
        weights += model.lm_head.weight.numel()
    length = config.context if sequence_length is None else sequence_length
    return 6 * weights + 12 * config.num_hidden_layers * config.num_attention_heads * config.head_dim * length
