"""Checksums, manifests and plain files: damage is found, nothing is executed, nothing has no end."""

import json
import os
import random

import numpy as np
import pytest
import torch

from mbrl_hdp.data.atomic import atomic_path
from mbrl_hdp.data.manifest import MANIFEST, check_file, check_manifest, data_hash, write_manifest
from mbrl_hdp.data.plain_files import check_plain_yaml, file_problem, read_json
from mbrl_hdp.data.tensor_files import read_tensors, write_tensors
from mbrl_hdp.errors import CheckpointError, WriteError


def some_tensors():
    generator = torch.Generator().manual_seed(0)
    return {
        "weights": torch.randn(3, 5, generator=generator),
        "count": torch.tensor(7),
        "keep": torch.tensor([True, False, True]),
        "state": torch.arange(9, dtype=torch.uint8),
        "empty": torch.zeros(0, 2, dtype=torch.float64),
    }


class TestTensorFiles:
    def test_everything_comes_back(self, tmp_path):
        tensors, words = some_tensors(), {"name": "hdp", "rate": 0.1, "list": [1, None]}
        write_tensors(tmp_path / "x.safetensors", tensors, words)
        found, read = read_tensors(tmp_path / "x.safetensors")
        assert read == words
        assert {name: (t.dtype, t.shape) for name, t in found.items()} == {
            n: (t.dtype, t.shape) for n, t in tensors.items()
        }
        assert all(torch.equal(found[name], tensors[name]) for name in tensors)

    def test_equal_content_makes_equal_files(self, tmp_path):
        for name in ("a", "b"):
            write_tensors(tmp_path / name, some_tensors(), {"x": 1})
        assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()

    @pytest.mark.parametrize("seed", range(40))
    def test_no_flipped_bit_goes_unnoticed(self, tmp_path, seed):
        path, rng = tmp_path / "x.safetensors", random.Random(seed)
        write_tensors(path, some_tensors(), {"name": "hdp"})
        content = bytearray(path.read_bytes())
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match=r"x\.safetensors"):
            read_tensors(path)

    @pytest.mark.parametrize("value", [float("nan"), float("inf")])
    def test_numbers_that_are_not_finite_are_refused(self, tmp_path, value):
        write_tensors(tmp_path / "x", {"good": torch.ones(2), "bad": torch.tensor([1.0, value])}, {})
        with pytest.raises(CheckpointError, match="'bad' holds 1 values that are not finite"):
            read_tensors(tmp_path / "x")

    def test_a_file_of_another_run_is_refused_though_it_is_whole(self, tmp_path):
        for name, value in (("mine", 1.0), ("theirs", 2.0)):
            (tmp_path / name).mkdir()
            write_tensors(tmp_path / name / "x.safetensors", {"weights": torch.full((2,), value)}, {})
            write_manifest(tmp_path / name)
        (tmp_path / "theirs" / "x.safetensors").replace(tmp_path / "mine" / "x.safetensors")
        with pytest.raises(CheckpointError, match=r"x\.safetensors is damaged or belongs to another run"):
            read_tensors(tmp_path / "mine" / "x.safetensors")

    def test_a_pipe_is_refused(self, tmp_path):
        os.mkfifo(tmp_path / "x.safetensors")
        writer = os.open(tmp_path / "x.safetensors", os.O_RDWR)  # so that a read would fail here, not wait for ever
        with pytest.raises(CheckpointError, match=r"x\.safetensors is a pipe or a device"):
            read_tensors(tmp_path / "x.safetensors")
        os.close(writer)

    def test_a_full_disk_is_an_error_of_ours(self, tmp_path, monkeypatch):
        from safetensors import SafetensorError

        import mbrl_hdp.data.tensor_files as module

        def full(*_, **__):
            raise SafetensorError("I/O error: No space left on device (os error 28)")

        monkeypatch.setattr(module, "save_file", full)
        with pytest.raises(WriteError, match=r"cannot write .*x: .*No space left"):
            write_tensors(tmp_path / "x", some_tensors(), {})
        assert list(tmp_path.iterdir()) == []


class TestManifest:
    @pytest.fixture
    def folder(self, tmp_path):
        (tmp_path / "model").mkdir()
        (tmp_path / "model" / "numbers").write_bytes(b"1234")
        (tmp_path / "run.json").write_text('{"epoch": 2}')
        write_manifest(tmp_path, {"configuration": "abc"})
        return tmp_path

    def test_a_whole_folder_passes(self, folder):
        check_manifest(folder, {"configuration": "abc"})
        check_file(folder / "model" / "numbers")

    def test_changes_are_named(self, folder):
        (folder / "model" / "numbers").write_bytes(b"1235")
        for check in (lambda: check_manifest(folder, {}), lambda: check_file(folder / "model" / "numbers")):
            with pytest.raises(CheckpointError, match=r"model/numbers is damaged or belongs to another run"):
                check()

    def test_missing_and_foreign_files_are_named(self, folder):
        (folder / "more").touch()
        with pytest.raises(CheckpointError, match="more does not belong there"):
            check_manifest(folder, {})
        (folder / "more").unlink()
        (folder / "run.json").unlink()
        with pytest.raises(CheckpointError, match=r"run\.json is missing"):
            check_manifest(folder, {})

    def test_a_folder_of_another_run_is_refused(self, folder):
        with pytest.raises(CheckpointError, match="belongs to another configuration"):
            check_manifest(folder, {"configuration": "abd"})

    def test_a_link_in_place_of_a_file_is_refused(self, folder, tmp_path_factory):
        outside = tmp_path_factory.mktemp("outside") / "numbers"
        outside.write_bytes(b"1234")
        (folder / "model" / "numbers").unlink()
        (folder / "model" / "numbers").symlink_to(outside)
        with pytest.raises(CheckpointError, match="numbers is missing"):
            check_manifest(folder, {"configuration": "abc"})

    def test_a_damaged_manifest_is_refused(self, folder):
        (folder / MANIFEST).write_text("{}")
        with pytest.raises(CheckpointError, match="another version"):
            check_file(folder / "run.json")

    def test_hashes_do_not_depend_on_order(self):
        assert data_hash({"a": 1, "b": [1, 2]}) == data_hash({"b": [1, 2], "a": 1})
        assert data_hash({"a": 1}) != data_hash({"a": 2})


class TestPlainFiles:
    def test_pipes_devices_folders_and_sizes(self, tmp_path):
        os.mkfifo(tmp_path / "pipe")
        (tmp_path / "device").symlink_to("/dev/zero")
        (tmp_path / "loop").symlink_to(tmp_path / "loop")
        (tmp_path / "text").write_text("12345")
        assert "pipe or a device" in file_problem(tmp_path / "pipe")
        assert "pipe or a device" in file_problem(tmp_path / "device")
        assert "folder" in file_problem(tmp_path)
        assert "cannot be read" in file_problem(tmp_path / "loop")
        assert "does not exist" in file_problem(tmp_path / "none")
        assert file_problem(tmp_path / "text", 5) is None
        assert "at most 4" in file_problem(tmp_path / "text", 4)

    def test_deep_json_is_refused(self, tmp_path):
        (tmp_path / "x.json").write_text("[" * 100_000)
        with pytest.raises(CheckpointError, match=r"x\.json is damaged"):
            read_json(tmp_path / "x.json")
        (tmp_path / "x.json").write_text("[1]")
        with pytest.raises(CheckpointError, match="holds a list"):
            read_json(tmp_path / "x.json")

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("a: &x [1]\nb: *x\n", "line 1: aliases and anchors"),
            ("a: 1\nb: !!python/object/apply:os.system [ls]\n", "line 2: the tag"),
            ("a: " + "[" * 1000 + "]" * 1000, "nested more than"),
            ("a: [1", "damaged"),
        ],
    )
    def test_yaml_is_plain(self, text, message):
        with pytest.raises(CheckpointError, match=message):
            check_plain_yaml(text, "config.yaml")

    def test_a_billion_laughs_take_no_time(self):
        lines = ["a0: &a0 [lol]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
        with pytest.raises(CheckpointError, match="aliases"):
            check_plain_yaml("\n".join(lines), "config.yaml")


def test_a_file_is_on_the_disk_before_it_takes_its_place(tmp_path, monkeypatch):
    calls = []
    real_sync, real_replace = os.fsync, type(tmp_path).replace

    def replace(self, target):
        calls.append("replace")
        return real_replace(self, target)

    monkeypatch.setattr(os, "fsync", lambda handle: (calls.append("fsync"), real_sync(handle)))
    monkeypatch.setattr(type(tmp_path), "replace", replace)
    with atomic_path(tmp_path / "x.json") as path:
        path.write_text(json.dumps(np.arange(3).tolist()))
    assert calls == ["fsync", "replace", "fsync"]
