"""Compiled steps kept on disk: loaded without being traced, the same to the bit, and ignored if anything is wrong."""

import hashlib
import os
import stat
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from covey.runtime.stacked import kept_step
from covey.runtime.stacked.engine import Engine
from covey.runtime.stacked.kept_step import (
    MOST_FILES,
    SETTING,
    KeptStep,
    can_be_kept,
    is_possible,
    read_step,
    step_file,
    write_step,
)
from tests.runtime.stacked.test_lane_check import held, trained

pytestmark = pytest.mark.skipif(not is_possible(), reason="this PyTorch or system keeps no compiled steps")


class FewTensors(SimpleNamespace):
    """Lanes of two tensors."""

    def tensors(self):
        return [self.w, self.loss]


def some_lanes():
    return FewTensors(w=torch.linspace(-1, 1, 12).view(3, 4), loss=torch.zeros(3, dtype=torch.float64))


ROW = {"rate": torch.tensor([0.1, 0.0, 0.3]), "sample": torch.tensor([[0, 1], [1, 2], [3, 3]])}
SAMPLES = torch.linspace(0, 3, 16).view(4, 4)
SCALE = torch.tensor([2.0])


def a_step(constant=SCALE):
    def step(lanes, samples, sample, rate):
        x = samples[sample].mean(dim=1) * constant
        lanes.loss.add_((lanes.w * x).sum(dim=1).double())
        lanes.w.sub_(rate[:, None] * torch.tanh(lanes.w * x))

    return step


def never(lanes, samples, **row):
    raise AssertionError("a step that was kept must not be traced")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty cache for steps, and for what PyTorch keeps."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    monkeypatch.setenv(SETTING, "1")
    torch._dynamo.reset()
    return tmp_path / "covey" / "steps"


def taken(step, steps=2, samples=SAMPLES):
    """Return the lanes after some steps."""
    lanes = some_lanes()
    for _ in range(steps):
        step(lanes, samples, **ROW)
    return lanes.tensors()


def same(found, wanted):
    return all(map(torch.equal, found, wanted))


def kept(step=None, constants=(SCALE,), key="a"):
    return KeptStep(step or a_step(), constants, key)


def test_a_kept_step_is_loaded_without_tracing_it_and_has_the_same_bits(folder):
    wanted = taken(torch.compile(a_step(), dynamic=False))
    assert same(taken(kept()), wanted)
    (file,) = folder.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and stat.S_IMODE(folder.stat().st_mode) == 0o700
    torch._dynamo.reset()
    assert same(taken(kept(never)), wanted)
    # A constant is read where it lies now, and is no part of what was kept.
    assert same(taken(kept(never, [torch.tensor([3.0])])), taken(torch.compile(a_step(torch.tensor([3.0])))))
    assert [one.name for one in folder.iterdir()] == [file.name]


def test_another_key_or_other_sizes_are_another_step(folder):
    taken(kept())
    step = kept(never)
    with pytest.raises(AssertionError, match="must not be traced"):
        taken(kept(never, key="b"))
    with pytest.raises(AssertionError, match="must not be traced"):
        taken(step, samples=SAMPLES.repeat(2, 1))
    # Samples that grow during a run are seen at the next call, and what was loaded still serves the others.
    taken(step)
    growing = kept()
    wanted = torch.compile(a_step(), dynamic=False)
    assert same(taken(growing), taken(wanted))
    assert same(taken(growing, samples=SAMPLES.repeat(2, 1)), taken(wanted, samples=SAMPLES.repeat(2, 1)))
    assert len(list(folder.iterdir())) == 2


def a_broken_pickle(file):
    content = b"not a pickle"
    file.write_bytes(kept_step._MAGIC + hashlib.sha256(content).digest() + content)


def load_as(graph, monkeypatch):
    """Have what was kept be read as another graph."""

    def read_other(file):
        found = read_step(file)
        assert found is not None
        return found._replace(graph=graph)

    monkeypatch.setattr(kept_step, "read_step", read_other)


DAMAGES = {
    "cut": lambda file: file.write_bytes(file.read_bytes()[:-100]),
    "changed": lambda file: file.write_bytes(file.read_bytes()[:-1] + b"x"),
    "foreign": lambda file: file.write_bytes(b"hello"),
    "no pickle": a_broken_pickle,
    "empty": lambda file: file.write_bytes(b""),
    "others may write": lambda file: file.chmod(0o666),
    "others may write to the folder": lambda file: file.parent.chmod(0o777),
    "a link": lambda file: file.rename(file.with_suffix(".x")) and file.symlink_to(file.with_suffix(".x")),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_file_that_is_damaged_or_not_ours_alone_is_ignored(folder, damage):
    wanted = taken(kept())
    (file,) = folder.iterdir()
    damage(file)
    assert read_step(file) is None
    torch._dynamo.reset()
    assert same(taken(kept()), wanted)


def test_a_file_of_somebody_else_is_ignored(folder, monkeypatch):
    taken(kept())
    (file,) = folder.iterdir()
    assert read_step(file) is not None
    monkeypatch.setattr(os, "getuid", lambda: file.stat().st_uid + 1)
    assert read_step(file) is None


def test_what_was_kept_and_does_not_run_now_is_compiled_anew(folder, monkeypatch):
    wanted = taken(kept())

    def errs(*inputs):
        raise RuntimeError("no kernel image for this device")

    load_as(errs, monkeypatch)
    torch._dynamo.reset()
    step = kept()
    assert same(taken(step), wanted)
    assert list(step._loaded.values()) == [None]


def test_too_little_memory_is_no_reason_to_compile(folder, monkeypatch):
    taken(kept())

    def too_much(*inputs):
        raise torch.OutOfMemoryError

    load_as(too_much, monkeypatch)
    with pytest.raises(torch.OutOfMemoryError):
        taken(kept(never))


def test_a_step_of_several_graphs_or_with_values_of_its_own_is_not_kept(folder):
    def in_parts(lanes, samples, sample, rate):
        lanes.w.add_(1)
        torch._dynamo.graph_break()
        lanes.w.mul_(2)

    assert same(taken(kept(in_parts)), taken(in_parts))
    other = torch.tensor([2.0])

    def with_unknown(lanes, samples, sample, rate):
        lanes.w.mul_(other)

    assert same(taken(kept(with_unknown)), taken(with_unknown))
    assert not folder.exists()


def test_the_oldest_steps_make_room(folder):
    taken(kept())
    (file,) = folder.iterdir()
    for number in range(MOST_FILES):
        old = folder / f"{number}.step"
        old.write_bytes(b"")
        os.utime(old, (number, number))
    write_step(step_file("new"), torch.compile(a_step()), [])
    torch._dynamo.reset()
    taken(kept(key="another"))
    names = {one.name for one in folder.iterdir()}
    assert len(names) == MOST_FILES and file.name in names and "0.step" not in names and "1.step" not in names


def test_a_disk_that_is_full_leaves_nothing_and_stops_nothing(folder, monkeypatch):
    def full(self, target):
        raise OSError("no space left on device")

    monkeypatch.setattr("pathlib.Path.replace", full)
    assert same(taken(kept()), taken(torch.compile(a_step(), dynamic=False)))
    assert list(folder.iterdir()) == []


def test_it_is_off_without_the_variable(monkeypatch):
    assert can_be_kept()
    monkeypatch.setenv(SETTING, "0")
    assert not can_be_kept()
    monkeypatch.delenv(SETTING)
    assert not can_be_kept()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("work", "updated"),
    [
        ({"momentum": 0.9, "weight_decay": 1e-3, "proximal": 0.1}, []),
        ({"momentum": 0.9, "weight_decay": 1e-3, "proximal": 0.1}, ["layers.hidden0"]),
        ({"optimizer": "adam", "clip": 1.0}, []),
    ],
    ids=str,
)
def test_an_engine_loads_the_step_that_another_has_compiled(folder, monkeypatch, work, updated):
    monkeypatch.setattr(Engine, "_machine", "a machine")
    found = []
    for number in range(2):
        launcher = trained(**work)
        launcher.engine.compiles = True
        before = [value.clone() for value in held(launcher)]
        launcher.steps.step = step = launcher.engine.make_step(launcher._terms, {}, updated)
        launcher.steps.advance(0, 2)
        assert not all(map(torch.equal, before, held(launcher)))
        found.append([value.clone() for value in held(launcher)])
        assert [one is not None for one in step._loaded.values()] == [number == 1]
        torch._dynamo.reset()
    assert all(map(torch.equal, *found))
    assert len(list(folder.iterdir())) == 1


def test_a_model_of_somebodys_own_is_compiled_and_not_kept(monkeypatch):
    monkeypatch.setattr(Engine, "_machine", "a machine")
    launcher = trained()
    launcher.engine.compiles = True
    assert isinstance(launcher.engine.make_step(launcher._terms, {}), KeptStep)
    launcher.engine.module.own = Own()
    assert not isinstance(launcher.engine.make_step(launcher._terms, {}), KeptStep)


class Own(nn.Module):
    """A layer of somebody's own."""
