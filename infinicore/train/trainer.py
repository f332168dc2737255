"""The loop: batches in, steps of the optimizer, checkpoints and figures out."""

import contextlib
import math
import time

import infinicore
from infinicore import nn

from ..amp import GradScaler, autocast
from ..autograd import no_grad
from ..models import LanguageModel
from ..random import fork_rng
from .checkpoint import checkpoint_values, latest, load_checkpoint, save_checkpoint
from .diagnose import explain
from .record import Record, Watch


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


class Trainer:
    """Trains `model` on batches of `train_data` (a `DataLoader`) for `steps` steps of `optimizer`, or for `epochs`.

    A step takes `accumulate` batches; their losses are averaged. `loss(model, batch)` gives the loss of a batch (default:
    `default_loss`). `clip` bounds the norm of all gradients. `amp` ("bfloat16", "float16" or None) runs forward passes
    under autocast, float16 with a `GradScaler`. Every `eval_every` steps `eval_data` is evaluated in evaluation mode;
    `patience` evaluations without a new least loss end the run. With a `folder`, rows go to log.jsonl (log.csv and
    loss.png at the end), and checkpoints are written every `save_every` steps and at the end, of which the newest
    `keep` stay; `fit` continues from the newest one. What follows is bit for bit what an unbroken run gives.
    `callbacks` are called as `callback(trainer, row)` with each row that is logged.
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
    ):
        if (steps is None) == (epochs is None):
            raise ValueError(f"give either `steps` or `epochs`, got {steps} and {epochs}")
        for name, value in (("accumulate", accumulate), ("log_every", log_every)):
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"`{name}` must be a positive integer, got {value!r}")
        if save_every is not None and folder is None:
            raise ValueError(f"`save_every` is {save_every}, but there is no `folder` to save checkpoints in")
        if eval_every is not None and eval_data is None:
            raise ValueError(f"`eval_every` is {eval_every}, but there is no `eval_data`")
        if patience is not None and eval_every is None:
            raise ValueError(f"`patience` is {patience}, but nothing is evaluated: give `eval_every`")
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
        self.step, self.best, self.since_best, self.stopped = 0, math.inf, 0, False
        self.record, self._peak_flops = None, None

    # ---- parts of a step ----

    def _autocast(self):
        return contextlib.nullcontext() if self.amp is None else autocast(dtype=self.amp)

    def _forward(self, batch):
        with self._autocast():
            return self.loss(self.model, batch)

    def train_step(self):
        """One step: (mean loss, norm of the gradients or None, tokens or samples)."""
        total, count = 0.0, 0
        for _ in range(self.accumulate):
            batch = next(self.data)
            loss = self._forward(batch)
            value = loss.item()
            if not math.isfinite(value):
                raise ValueError(explain(self.model, lambda b=batch: self._forward(b), self.step + 1, value))
            total += value / self.accumulate
            count += _size(batch)
            loss = loss / self.accumulate if self.accumulate > 1 else loss
            (loss if self.scaler is None else self.scaler.scale(loss)).backward()
        norm = None
        if self.clip is not None:
            if self.scaler is not None:
                self.scaler.unscale_(self.optimizer)
            norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.clip).item()
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        if self.scheduler is not None:
            self.scheduler.step()
        self.optimizer.zero_grad()
        return total, norm, count

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
                    total += self._forward(batch).item() * rows
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

        With a folder that holds checkpoints the run goes on from the newest (`resume=False`: starts anew). An interrupt
        saves a checkpoint before it is passed on. Raises ValueError for a loss that is not finite, and says where it
        comes from.
        """
        if resume and self.folder is not None and latest(self.folder) is not None:
            self.load(self.folder)
        self.record = Record(self.folder, resumed_from=self.step)
        watch = Watch(self.steps, self.progress)
        self.model.train()
        began, seen, window = time.perf_counter(), 0, []
        try:
            while self.step < self.steps and not self.stopped:
                loss, norm, count = self.train_step()
                self.step += 1
                seen += count
                window.append(loss)
                last = self.step == self.steps
                if self.step % self.log_every == 0 or last:
                    elapsed = time.perf_counter() - began
                    row = self._row(sum(window) / len(window), norm, seen / elapsed)
                    self._log(row, watch, last)
                    began, seen, window = time.perf_counter(), 0, []
                if self.eval_every is not None and (self.step % self.eval_every == 0 or last):
                    paused = time.perf_counter()
                    self._evaluated(self.evaluate(), watch)
                    began += time.perf_counter() - paused
                if self.save_every is not None and (self.step % self.save_every == 0 or last or self.stopped):
                    paused = time.perf_counter()
                    self.save()
                    began += time.perf_counter() - paused
        except KeyboardInterrupt:
            if self.save_every is not None:
                self.save()
            raise
        finally:
            watch.close()
            self.record.close()
        return self.record.rows

    def _row(self, loss, norm, rate):
        row = {"step": self.step, "loss": loss, "lr": float(self.optimizer.param_groups[0]["lr"])}
        if norm is not None:
            row["grad_norm"] = norm
        if isinstance(self.model, LanguageModel):
            row["tokens_per_s"] = rate
            row["mfu"] = rate * flops_per_token(self.model) / self.peak_flops()
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
            self.stopped = self.patience is not None and self.since_best >= self.patience
        self._log({"step": self.step, "eval_loss": loss}, watch, True)

    def peak_flops(self):
        """FLOP/s of the largest product of this machine in the dtype of the run, measured once: what MFU refers to."""
        if self._peak_flops is None:
            size = 1024
            a = infinicore.ones((size, size), dtype=self.amp or infinicore.float32)
            times = []
            for _ in range(4):
                began = time.perf_counter()
                infinicore.matmul(a, a)
                times.append(time.perf_counter() - began)
            self._peak_flops = 2 * size**3 / min(times)
        return self._peak_flops

    # ---- checkpoints ----

    def _parts(self):
        found = {"data": self.data, "scheduler": self.scheduler, "scaler": self.scaler}
        return {name: part for name, part in found.items() if part is not None}

    def save(self):
        """Write a checkpoint of this moment into `folder`; returns its path."""
        values = {"best": str(self.best), "since_best": self.since_best, "stopped": self.stopped}
        return save_checkpoint(
            self.folder, self.step, self.model, self.optimizer, keep=self.keep, trainer=values, **self._parts()
        )

    def load(self, path):
        """Go back (or ahead) to a checkpoint."""
        self.step = load_checkpoint(path, self.model, self.optimizer, **self._parts())
        values = checkpoint_values(path)["trainer"]
        self.best, self.since_best, self.stopped = float(values["best"]), values["since_best"], values["stopped"]


def _size(batch):
    """Tokens of a batch of ids, else samples."""
    first = batch[0] if isinstance(batch, (tuple, list)) else batch
    if not hasattr(first, "shape") or not first.shape:
        return 1
    return first.numel() if not first.dtype.is_floating_point and first.ndim == 2 else first.shape[0]


def flops_per_token(model):
    """Operations of a training step for each token: 6 for each parameter in products, and attention's 12 L d T."""
    config = model.config
    weights = sum(p.numel() for p in model.parameters() if p.ndim >= 2)
    context = min(config.context, 1024)
    return 6 * weights + 12 * config.num_hidden_layers * config.hidden_size * context
