"""The profile of whole rounds, in miniature and without a GPU."""

import json

from benchmarks.gpu_profile import main


def test_rounds_are_traced_and_their_time_is_told(tmp_path, monkeypatch, capsys):
    out = tmp_path / "out" / "profile.json"
    given = ["--workload", "W0", "--runs", "2", "--precision", "fp32", "--device", "cpu", "--most", "3", "--host"]
    monkeypatch.setattr("sys.argv", ["gpu_profile.py", *map(str, given), "--out", str(out)])
    main()
    found = json.loads(out.read_text(encoding="utf-8"))
    assert found["runs"] == 2 and 0 < found["busy"] <= 1.2
    assert found["round_ms"] > 0 and found["traced_round_ms"] > 0
    assert any("convolution" in row["kernel"] for row in found["kernels"])
    assert max(row["ms"] for row in found["host"]) > 0 and any("stacked" in row["function"] for row in found["host"])
    assert len(capsys.readouterr().out.splitlines()) == 7
