"""What simulated clients keep: rows in segments, an index in the checkpoint, and nothing lost by a kill."""

import json
import random
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from covey import Refusal
from covey.arrays import State
from covey.core import kept_segments
from covey.core.checkpoint import read_checkpoint, write_checkpoint
from covey.core.client_store import ClientStore
from covey.core.kept_segments import copy_segments

WIDTH = 100
ROW = WIDTH * 4
"""Bytes of a row."""


def row(client: int, t: int) -> Tensor:
    return torch.full((WIDTH,), float(client)) + t / 1000


def attached(folder: Path, limit: int = 0) -> ClientStore:
    """Return the store of a run folder, as of its checkpoint."""
    store = ClientStore(limit)
    _, state = read_checkpoint(folder)
    store.load_state_dict(state or {})
    store.attach(folder, WIDTH)
    return store


def write(store: ClientStore, folder: Path, t: int) -> None:
    """Write a checkpoint as records do."""
    write_checkpoint(folder, t, store.state_dict())
    store.checkpointed()


def segments(folder: Path) -> dict[str, int]:
    """Return name → number of rows of the segments in a folder."""
    return {path.name: len(load_file(path)) for path in sorted((folder / "kept").glob("*"))}


def visit(store: ClientStore, t: int, *clients: int) -> None:
    store.put(t, {client: row(client, t) for client in clients})


def test_a_checkpoint_writes_the_rows_that_changed_and_an_index(tmp_path: Path) -> None:
    store = attached(tmp_path)
    visit(store, 1, *range(20))
    write(store, tmp_path, 1)
    first = (tmp_path / "kept" / "00000000.safetensors").stat()
    visit(store, 2, 3, 5)
    write(store, tmp_path, 2)
    assert segments(tmp_path) == {"00000000.safetensors": 20, "00000001.safetensors": 2}
    again = (tmp_path / "kept" / "00000000.safetensors").stat()
    assert (first.st_mtime_ns, first.st_ino) == (again.st_mtime_ns, again.st_ino)
    _, state = read_checkpoint(tmp_path)
    assert state is not None
    assert {name: len(value) for name, value in state.items() if isinstance(value, Tensor)} == {
        "clients": 20,
        "rounds": 20,
        "segments": 20,
    }
    assert (tmp_path / "checkpoint.safetensors").stat().st_size < 20 * ROW / 4
    write(store, tmp_path, 3)
    assert len(segments(tmp_path)) == 2, "nothing has changed"


def test_rows_are_read_when_they_are_asked_for_and_have_the_same_bits(tmp_path: Path) -> None:
    store = attached(tmp_path)
    values = {client: torch.randn(WIDTH, dtype=torch.float64) for client in (2, 7)}
    values[7][3] = float("nan")
    store.put(4, values)
    write(store, tmp_path, 4)
    again = attached(tmp_path)
    assert (len(again), again.bytes_in_memory) == (2, 0)
    found = again.of([1, 2, 7])
    assert {client: kept.t for client, kept in found.items()} == {2: 4, 7: 4}
    assert all(found[client].values.numpy().tobytes() == values[client].numpy().tobytes() for client in values)
    assert again.bytes_in_memory == 2 * WIDTH * 8


def test_segments_go_once_the_checkpoint_that_replaces_them_is_on_disk(tmp_path: Path) -> None:
    store = attached(tmp_path)
    visit(store, 1, 0, 1)
    write(store, tmp_path, 1)
    visit(store, 2, 0, 1)
    state = store.state_dict()
    assert list(segments(tmp_path)) == ["00000000.safetensors", "00000001.safetensors"]
    assert attached_rounds(tmp_path) == {0: 1, 1: 1}
    write_checkpoint(tmp_path, 2, state)
    store.checkpointed()
    assert attached_rounds(tmp_path) == {0: 2, 1: 2}
    assert len(segments(tmp_path)) == 1


def attached_rounds(folder: Path) -> dict[int, int]:
    """Return client → round of the rows that the checkpoint refers to, read without changing the folder."""
    _, state = read_checkpoint(folder)
    assert state is not None
    index = zip(state["clients"].tolist(), state["rounds"].tolist(), state["segments"].tolist(), strict=True)
    found = {}
    for client, t, segment in index:
        values = load_file(folder / "kept" / f"{segment:08}.safetensors")[str(client)]
        assert torch.equal(values, row(client, t))
        found[client] = t
    return found


@pytest.mark.parametrize("limit", [0, 7 * ROW])
def test_segments_that_are_mostly_dead_are_compacted(tmp_path: Path, limit: int) -> None:
    store, rng, rounds, written = attached(tmp_path, limit), random.Random(3), dict[int, int](), 0
    for t in range(1, 80):
        cohort = rng.sample(range(40), 5)
        before = set(segments(tmp_path)) if t > 1 else set()
        visit(store, t, *cohort)
        rounds |= dict.fromkeys(cohort, t)
        write(store, tmp_path, t)
        held = segments(tmp_path)
        written += sum(count for name, count in held.items() if name not in before)
        assert sum(held.values()) <= 2 * len(rounds)
        assert attached_rounds(tmp_path) == rounds
    assert written <= 2 * 5 * 79, "moving rows costs at most as much again"
    assert len(segments(tmp_path)) <= 20
    kept = attached(tmp_path).of(range(40))
    assert {client: kept_row.t for client, kept_row in kept.items()} == rounds


def test_what_a_kill_has_left_is_removed_and_other_files_are_not(tmp_path: Path) -> None:
    store = attached(tmp_path)
    visit(store, 1, 0, 1, 2)
    write(store, tmp_path, 1)
    left = ["00000001.safetensors", "00000002.safetensors.part", "123456789.safetensors"]
    others = ["notes.txt", "model.safetensors", "1.safetensors", "0000000a.safetensors"]
    for name in (*left, *others):
        (tmp_path / "kept" / name).write_bytes(b"x")
    (tmp_path / "00000001.safetensors").write_bytes(b"x")
    attached(tmp_path)
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == sorted(["00000000.safetensors", *others])
    assert (tmp_path / "00000001.safetensors").exists()


def test_segments_before_the_first_checkpoint_are_left_overs_too(tmp_path: Path) -> None:
    store = attached(tmp_path)
    visit(store, 1, 0)
    store.state_dict()
    assert segments(tmp_path)
    assert len(attached(tmp_path)) == 0
    assert not segments(tmp_path)


def test_segments_are_readable_by_their_owner_alone(tmp_path: Path) -> None:
    store = attached(tmp_path)
    visit(store, 1, 0)
    write(store, tmp_path, 1)
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "kept", *(tmp_path / "kept").iterdir())]
    assert modes == [0o700, 0o600]


class Killed(BaseException):
    """Stands for the end of the process."""


FILE_OPERATIONS: tuple[tuple[Any, str], ...] = (
    (Path, "replace"), (Path, "unlink"), (Path, "mkdir"), (kept_segments, "save_file"), (kept_segments, "sync_folder"),
)  # fmt: skip


def killing_at(place: int, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Let the process end before a file operation (an odd `place`) or after it; return a count of operations."""
    count = 0

    def watched(operation: Callable[..., Any]) -> Callable[..., Any]:
        def perform(*arguments: Any, **options: Any) -> Any:
            nonlocal count
            count += 1
            if 2 * count - 1 == place:
                raise Killed
            answer = operation(*arguments, **options)
            if 2 * count == place:
                raise Killed
            return answer

        return perform

    for owner, name in FILE_OPERATIONS:
        monkeypatch.setattr(owner, name, watched(getattr(owner, name)))
    return lambda: count


def schedule() -> Iterator[tuple[int, list[int]]]:
    rng = random.Random(5)
    return ((t, rng.sample(range(8), 3)) for t in range(1, 9))


def run_rounds(folder: Path, limit: int) -> None:
    """Run a schedule of visits from the checkpoint on, and check that every client finds what it kept last."""
    done, _ = read_checkpoint(folder)
    store = attached(folder, limit)
    rounds: dict[int, int] = {}
    for t, cohort in schedule():
        if t > done:
            found = store.of(cohort)
            assert {client: kept.t for client, kept in found.items()} == {
                client: rounds[client] for client in cohort if client in rounds
            }
            assert all(torch.equal(kept.values, row(client, kept.t)) for client, kept in found.items())
            visit(store, t, *cohort)
            # Runs in lockstep have no checkpoint in some rounds.
            if t % 2 == 0:
                write(store, folder, t)
        rounds |= dict.fromkeys(cohort, t)


@pytest.mark.parametrize("limit", [0, 2 * ROW])
def test_a_kill_at_any_file_operation_loses_nothing(tmp_path: Path, limit: int) -> None:
    def killed(place: int) -> Path:
        folder = tmp_path / f"killed-{place}"
        folder.mkdir()
        with pytest.MonkeyPatch.context() as patched:
            killing_at(place, patched)
            with pytest.raises(Killed):
                run_rounds(folder, limit)
        run_rounds(folder, limit)
        return folder

    (tmp_path / "whole").mkdir()
    with pytest.MonkeyPatch.context() as patched:
        counted = killing_at(0, patched)
        run_rounds(tmp_path / "whole", limit)
        operations = counted()
    assert operations > 20
    for place in range(1, 2 * operations + 1):
        assert files(killed(place)) == files(tmp_path / "whole")


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_rows_beyond_the_limit_lie_on_disk_alone(tmp_path: Path) -> None:
    store = attached(tmp_path, limit=4 * ROW)
    visit(store, 1, 0, 1, 2)
    assert not (tmp_path / "kept").exists(), "there is room"
    visit(store, 2, 3, 4)
    assert store.bytes_in_memory <= 4 * ROW
    assert segments(tmp_path) == {"00000000.safetensors": 5}, "written before there is a checkpoint"
    assert [kept.t for kept in store.of([0, 1, 2, 3, 4]).values()] == [1, 1, 1, 2, 2]
    assert store.bytes_in_memory <= 4 * ROW
    visit(store, 3, 0)
    write(store, tmp_path, 3)
    assert store.bytes_in_memory <= 4 * ROW
    assert all(torch.equal(kept.values, row(client, kept.t)) for client, kept in store.of(range(5)).items())


def test_the_rows_used_least_recently_leave_memory_first(tmp_path: Path) -> None:
    store = attached(tmp_path, limit=3 * ROW)
    visit(store, 1, 0, 1, 2)
    write(store, tmp_path, 1)
    store.of([0])
    visit(store, 2, 3)
    assert len(segments(tmp_path)) == 1, "a row that is on disk already makes room"
    (tmp_path / "kept" / "00000000.safetensors").unlink()
    assert sorted(store.of([0, 2, 3])) == [0, 2, 3], "these are in memory"
    with pytest.raises(Refusal, match=r"has lost kept/00000000\.safetensors"):
        store.of([1])


def test_rows_are_replaced_on_disk_only_with_a_checkpoint(tmp_path: Path) -> None:
    """A run in lockstep that writes rows for want of memory leaves those of its last checkpoint alone."""
    store = attached(tmp_path, limit=ROW)
    visit(store, 1, 0, 1)
    write(store, tmp_path, 1)
    for t in range(2, 6):
        visit(store, t, 0, 1)
    assert attached_rounds(tmp_path) == {0: 1, 1: 1}
    write(store, tmp_path, 5)
    assert attached_rounds(tmp_path) == {0: 5, 1: 5}
    assert len(segments(tmp_path)) == 1


def test_a_row_does_not_keep_the_tensor_of_its_cohort_in_memory() -> None:
    store = ClientStore()
    cohort = torch.zeros(50, WIDTH)
    store.put(1, {0: cohort[7]})
    assert store.of([0])[0].values.untyped_storage().nbytes() == ROW == store.bytes_in_memory


class OnDevice(Tensor):
    """A row that says that it lies on a GPU."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda", 0)

    def cpu(self, *_: Any, **__: Any) -> Tensor:
        return self.as_subclass(Tensor)


def test_rows_stay_on_their_device_while_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("covey.core.client_store.room_on", lambda device: 4 * ROW)
    store = ClientStore(limit=ROW)
    store.attach(tmp_path, WIDTH, runs=2)
    for t in (1, 2):
        store.put(t, {client: row(client, t).as_subclass(OnDevice) for client in range(3)})
        kinds = [type(one.values) for one in store.of(range(3)).values()]
        assert kinds == [OnDevice, OnDevice, Tensor]
        # The third has no room there, and on the host the limit of two runs leaves none.
        assert store.bytes_in_memory == 0
        write(store, tmp_path, t)
    again = attached(tmp_path)
    for found in (store.of(range(3)), again.of(range(3))):
        assert [one.t for one in found.values()] == [2, 2, 2]
        assert all(torch.equal(one.values.cpu(), row(client, 2)) for client, one in found.items())
    store.put(3, {0: row(0, 3)})
    store.put(3, {2: row(2, 3).as_subclass(OnDevice)})
    assert isinstance(store.of([2])[2].values, OnDevice)


def test_without_a_folder_all_rows_are_in_memory_and_in_the_state(tmp_path: Path) -> None:
    store = ClientStore(limit=ROW)
    visit(store, 1, 4, 2, 9)
    assert store.bytes_in_memory == 3 * ROW
    write_checkpoint(tmp_path, 1, store.state_dict())
    _, state = read_checkpoint(tmp_path)
    again = ClientStore()
    again.load_state_dict(state or {})
    assert all(torch.equal(kept.values, row(client, 1)) for client, kept in again.of([2, 4, 9]).items())
    again.attach(tmp_path, WIDTH)
    write(again, tmp_path, 1)
    assert segments(tmp_path) == {"00000000.safetensors": 3}, "a folder takes over what its checkpoint held"
    assert attached_rounds(tmp_path) == {2: 1, 4: 1, 9: 1}


def test_an_index_without_its_folder_can_be_loaded_and_its_rows_are_refused(tmp_path: Path) -> None:
    store = attached(tmp_path)
    visit(store, 1, 0)
    write(store, tmp_path, 1)
    _, state = read_checkpoint(tmp_path)
    alone = ClientStore()
    alone.load_state_dict(state or {})
    assert len(alone) == 1
    with pytest.raises(Refusal, match="lies in the folder of their run"):
        alone.of([0])


def test_segments_are_copied_with_a_run(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "copy").mkdir()
    copy_segments(tmp_path / "base", tmp_path / "copy")
    assert not list((tmp_path / "copy").iterdir())
    store = attached(tmp_path / "base")
    visit(store, 1, 0, 1)
    write(store, tmp_path / "base", 1)
    (tmp_path / "base" / "kept" / "secret").write_text("x")
    copy_segments(tmp_path / "base", tmp_path / "copy")
    write_checkpoint(tmp_path / "copy", 1, read_checkpoint(tmp_path / "base")[1] or {})
    assert [path.name for path in (tmp_path / "copy" / "kept").iterdir()] == ["00000000.safetensors"]
    assert [stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "copy" / "kept").iterdir()] == [0o600]
    visit(store, 2, 0, 1)
    write(store, tmp_path / "base", 2)
    assert torch.equal(attached(tmp_path / "copy").of([1])[1].values, row(1, 1))


def test_clients_that_were_never_seen_cost_nothing(tmp_path: Path) -> None:
    """Of 100,000 clients 30 are seen: what memory and disk hold grows with these."""
    rng = random.Random(0)
    sizes = []
    for clients in (100, 100_000):
        folder = tmp_path / str(clients)
        folder.mkdir()
        store = attached(folder)
        seen = rng.sample(range(clients), 30)
        for t in range(3):
            visit(store, t + 1, *seen[10 * t : 10 * t + 10])
            write(store, folder, t + 1)
        assert (len(store), store.bytes_in_memory) == (30, 30 * ROW)
        sizes.append([path.stat().st_size for path in sorted(folder.rglob("*.safetensors"))])
        assert attached(folder).bytes_in_memory == 0
    assert all(abs(few - many) < 0.2 * few for few, many in zip(*sizes, strict=True))


# What lies in a folder is not believed.


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A folder with two segments: clients 0, 1, 2 of round 1, and 3 of round 2."""
    store = attached(tmp_path)
    visit(store, 1, 0, 1, 2)
    write(store, tmp_path, 1)
    visit(store, 2, 3)
    write(store, tmp_path, 2)
    return tmp_path


def refused(folder: Path) -> str:
    with pytest.raises(Refusal) as refusal:
        attached(folder).of(range(4))
    return str(refusal.value)


def test_a_segment_that_is_gone_is_named(written: Path) -> None:
    (written / "kept" / "00000001.safetensors").unlink()
    assert "has lost kept/00000001.safetensors" in refused(written)
    assert (written / "kept" / "00000000.safetensors").exists()


def test_a_segment_of_which_any_byte_has_changed_is_refused_or_read_as_it_was(written: Path) -> None:
    path = written / "kept" / "00000000.safetensors"
    whole = path.read_bytes()
    for place in range(0, len(whole), 3):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x11]) + whole[place + 1 :])
        with suppress(Refusal):
            found = attached(written).of([0, 1, 2])
            assert all(torch.equal(kept.values, row(client, 1)) for client, kept in found.items())


@pytest.mark.parametrize("length", [0, 5, 100, 700])
def test_a_segment_that_was_cut_off_is_refused(written: Path, length: int) -> None:
    path = written / "kept" / "00000000.safetensors"
    path.write_bytes(path.read_bytes()[:length])
    assert "00000000.safetensors is damaged and cannot be read" in refused(written)


def header(**changes: Any) -> dict[str, str]:
    sound = {"segment": 0, "rounds": {"0": 1, "1": 1, "2": 1}, "sums": {"0": 1, "1": 1, "2": 1}}
    return {"covey": json.dumps({**sound, **changes})}


@pytest.mark.parametrize(
    ("tensors", "about", "reason"),
    [
        ({"0": torch.zeros(WIDTH)}, header(), "its rows are not those of its header"),
        ({str(client): torch.zeros(WIDTH + 1) for client in range(3)}, header(), r"shape \[101\], and not \[100\]"),
        ({str(client): torch.zeros(1, WIDTH) for client in range(3)}, header(), "has the shape"),
        ({str(client): torch.zeros(WIDTH, dtype=torch.int32) for client in range(3)}, header(), "has the shape"),
        ({str(client): torch.zeros(WIDTH) for client in range(3)}, header(segment=1), "it is segment 1"),
        ({str(client): torch.zeros(WIDTH) for client in range(3)}, header(rounds=[]), "rounds is"),
        ({str(client): torch.zeros(WIDTH) for client in range(3)}, header(sums={"0": "x"}), "sums.0 is 'x'"),
        ({str(client): torch.zeros(WIDTH) for client in range(3)}, header(), "the row of client 0 has changed"),
        ({str(client): torch.zeros(WIDTH) for client in range(3)}, {}, "its header is"),
        ({str(client): torch.zeros(WIDTH) for client in range(3)}, {"covey": "[" * 5000}, "nested too deeply"),
        ({"0": torch.zeros(WIDTH), "x": torch.zeros(WIDTH)}, header(rounds={"0": 1, "x": 1}), "invalid literal"),
        (
            {str(client): torch.zeros(WIDTH) for client in range(3)},
            header(rounds={"0": 1, "1": 7, "2": 1}),
            "not of this run: it has no row of client 1 from round 1",
        ),
    ],
)
def test_a_segment_of_another_kind_is_refused(
    written: Path, tensors: dict[str, Tensor], about: dict[str, str], reason: str
) -> None:
    save_file(tensors, written / "kept" / "00000000.safetensors", about)
    with pytest.raises(Refusal, match=reason):
        attached(written).of(range(4))


def test_links_are_not_followed(written: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    path = written / "kept" / "00000000.safetensors"
    path.rename(elsewhere / path.name)
    path.symlink_to(elsewhere / path.name)
    assert "it is no plain file" in refused(written)
    path.unlink()
    (written / "kept" / "00000001.safetensors").rename(elsewhere / "00000001.safetensors")
    (elsewhere / "00000007.safetensors").write_bytes(b"mine")
    (written / "kept").rmdir()
    (written / "kept").symlink_to(elsewhere)
    assert "must be a plain folder" in refused(written)
    with pytest.raises(Refusal, match="must be a plain folder"):
        copy_segments(written, elsewhere)
    assert len(list(elsewhere.iterdir())) == 3


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"segments": torch.tensor([0, 0, 0, 10**15])}, "its index of what clients keep is damaged"),
        ({"segments": torch.tensor([0, 0, 0, 2])}, "has lost kept/00000002.safetensors"),
        ({"segments": torch.tensor([0, 0, 0])}, "is damaged"),
        ({"segments": torch.tensor([0, 0, 0, -1])}, "are no whole numbers"),
        ({"segments": torch.tensor([0.0, 0, 0, 1])}, "are no whole numbers"),
        ({"rounds": torch.tensor([[1, 1, 1, 2]])}, "are no whole numbers"),
        ({"rounds": torch.tensor([1, 1, 1])}, "is damaged"),
        ({"clients": torch.tensor([0, 1, 2, 2])}, "is damaged"),
        ({"clients": ["../x"]}, "are no whole numbers"),
        ({"clients": torch.tensor([0, 1, 3, 2])}, "is not of this run: it has no row of client 3"),
        ({"rounds": torch.tensor([1, 1, 2, 2])}, "is not of this run: it has no row of client 2 from round 2"),
    ],
)
def test_an_index_that_is_damaged_is_refused(written: Path, change: State, reason: str) -> None:
    _, state = read_checkpoint(written)
    write_checkpoint(written, 2, {**(state or {}), **change})
    with pytest.raises(Refusal, match=reason):
        attached(written)


def test_rows_of_another_width_in_a_checkpoint_are_refused(tmp_path: Path) -> None:
    store = ClientStore()
    visit(store, 1, 0)
    with pytest.raises(Refusal, match="client 0 kept 100 numbers, and its trainer keeps 7"):
        store.attach(tmp_path, 7)


def test_a_folder_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    store = attached(tmp_path)
    visit(store, 1, 0)
    (tmp_path / "kept").write_text("a file")
    with pytest.raises(Refusal, match=r"cannot be written: .*resume with: covey resume"):
        store.state_dict()
    with pytest.raises(Refusal, match="must be a plain folder"):
        ClientStore().attach(tmp_path, WIDTH)
