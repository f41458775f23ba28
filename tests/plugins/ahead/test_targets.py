"""XLA's target configs from plain numbers: held to XLA's own of an H100, and compiled with where the plugin is."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from perfscope.__main__ import run
from perfscope.analyzers.devices import DEVICES, Device
from perfscope.analyzers.devices.target_text import parse_target
from perfscope.model.errors import UsageError
from perfscope.plugins.ahead.target_request import GENERATIONS, gpu_target_config, target_request
from perfscope.plugins.ahead.targets import plugins

FIXTURE = Path(__file__).parents[3] / "fixtures" / "h100.txtpb"
GPUS = [device for device in DEVICES if device.architecture is not None]


def _config(name: str, memory: str | None = None) -> str:
    return gpu_target_config(parse_target(name, memory))


def _fields(text: str) -> dict[str, str]:
    return dict(re.findall(r"(\w+): (\S+)", text))


@pytest.mark.parametrize("device", GPUS, ids=lambda device: device.name)
def test_cores_times_clock_times_lanes_is_the_rate_that_the_vendor_prints(device: Device) -> None:
    if device.name == "H20":
        return  # the printed 44 TFLOP/s are 11 % above 78 SMs at the boost clock of the H100, whose chip it is
    lanes = GENERATIONS[device.architecture].lanes
    assert 2 * device.cores * device.clock_hz * lanes == pytest.approx(device.peak_flops["float32"], rel=0.01)


def test_an_h100_is_the_one_that_xla_describes() -> None:
    ours, xlas = _fields(_config("h100")), _fields(FIXTURE.read_text())
    assert set(ours) == set(xlas)
    assert float(ours.pop("memory_bandwidth")) == pytest.approx(float(xlas.pop("memory_bandwidth")), rel=1e-3)
    for shown in ("name", "device_description_str"):
        del ours[shown], xlas[shown]
    assert ours == xlas


@pytest.mark.parametrize(
    ("name", "capability"),
    [
        ("a100", "{ major: 8 minor: 0 feature_extension: NONE }"),
        ("a10", "{ major: 8 minor: 6 feature_extension: NONE }"),
        ("l4", "{ major: 8 minor: 9 feature_extension: NONE }"),
        ("h200", "{ major: 9 minor: 0 feature_extension: ACCELERATED_FEATURES }"),
        ("b200", "{ major: 10 minor: 0 feature_extension: ACCELERATED_FEATURES }"),
        ("b300", "{ major: 10 minor: 3 feature_extension: ACCELERATED_FEATURES }"),
        ("rtx5090", "{ major: 12 minor: 0 feature_extension: ACCELERATED_FEATURES }"),
        ("mi300x", '{ gcn_arch_name: "gfx942:sramecc+:xnack-" }'),
    ],
)
def test_capabilities(name: str, capability: str) -> None:
    assert f"compute_capability {capability}" in _config(name)


def test_memory_of_ones_own_is_planned_for() -> None:
    assert f"device_memory_size: {40 << 30}\n" in _config("h100", "40GiB")


def test_a_die_of_amd_has_its_own_cache() -> None:
    assert "l2_cache_size: 4194304\n" in _config("mi300x")
    assert "l2_cache_size: 52428800\n" in _config("h100")


@pytest.mark.aot
@pytest.mark.jax
@pytest.mark.skipif(
    not isinstance(plugins.find("gpu-nvidia"), plugins.Plugin),
    reason="no compiler for NVIDIA GPUs here: PERFSCOPE_PLUGINS names none",
)
@pytest.mark.parametrize(
    ("target", "code"),
    [
        pytest.param(*one, marks=pytest.mark.slow)
        for one in (("b200", "sm_100a"), ("a100", "sm_80"), ("l4", "sm_89"), ("h200", "sm_90a"))
    ],
)
def test_xla_makes_code_of_the_architecture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, code: str
) -> None:
    """Newer XLA writes no PTX, and the manifest notes that."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(
        "import jax, jax.numpy as jnp\n"
        "step = jax.jit(lambda w, x: jax.nn.softmax((x @ w).astype(jnp.float32)).astype(x.dtype) @ w)\n"
        "w = step(jnp.zeros((512, 512), jnp.bfloat16), jnp.ones((512, 512), jnp.bfloat16))\n"
    )
    assert run(["compile", "--target", target, "-q", "--keep-ptx", "train.py"]) == 0
    if "no PTX" in Path("perfscope-runs/latest/compile.json").read_text():
        pytest.skip("this XLA wrote no PTX")
    kept = [path for path in Path("perfscope-runs/latest/programs").iterdir() if "ptx" in path.name]
    found = {name for path in kept for name in re.findall(r"(?m)^[.]target (\w+)", path.read_text())}
    assert found == {code}


def test_every_gpu_has_limits() -> None:
    for device in DEVICES:
        assert device.architecture is None or device.architecture in GENERATIONS, device.name


def test_a_device_without_a_compiler_is_refused() -> None:
    with pytest.raises(UsageError, match="no compiler for Trainium2 is known; `perfscope plan`"):
        target_request(parse_target("trn2"), configured=False)


def test_an_unknown_architecture_and_a_hostile_name() -> None:
    target = parse_target("a100")
    unknown = replace(target, device=replace(target.device, architecture="sm_999"))
    with pytest.raises(UsageError, match=r"the limits of sm_999, .*, are unknown"):
        gpu_target_config(unknown)
    text = gpu_target_config(replace(target, device=replace(target.device, name='x" } evil: "\n\\')))
    assert 'device_description_str: "x } evil: "\n' in text


pytest.importorskip("jax")
JAX = importlib.metadata.version("jax")


def _package(folder: Path, name: str, version: str, *files: str) -> None:
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(b"")


def _cuda(folder: Path, version: str = JAX) -> None:
    _package(folder, "jax-cuda13-pjrt", version, "jax_plugins/xla_cuda13/xla_cuda_plugin.so")


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("PERFSCOPE_PLUGINS", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    real = importlib.metadata.distribution

    def distribution(name: str) -> importlib.metadata.Distribution:
        if name.startswith(("jax-", "libtpu", "triton")):
            raise importlib.metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(importlib.metadata, "distribution", distribution)
    return tmp_path


def test_a_compiler_of_jaxs_version_in_a_folder_is_found(only: Path) -> None:
    _cuda(only)
    found = plugins.find("gpu-nvidia")
    assert isinstance(found, plugins.Plugin)
    assert found.library == only / "jax_plugins/xla_cuda13/xla_cuda_plugin.so"
    assert found.own_folder
    assert found.versions == {"jax-cuda13-pjrt": JAX}


def test_a_jax_that_programs_cannot_be_run_on_is_said_first(only: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _cuda(only, "0.9.2")
    real = importlib.metadata.distribution
    old = importlib.metadata.PathDistribution(only / "jax-0.9.2.dist-info")
    _package(only, "jax", "0.9.2")
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: old if name == "jax" else real(name))
    for kind in ("gpu-nvidia", "gpu-amd", "tpu"):
        found = plugins.find(kind)
        assert isinstance(found, plugins.MissingPlugin)
        assert not found.wrong
        assert found.reason == "jax 0.9.2 is too old, compiling ahead needs 0.10 or later"
        assert found.install == "pip install -U 'jax>=0.10'"


def test_one_of_another_version_is_named_with_both(only: Path) -> None:
    _cuda(only, "0.1.2")
    found = plugins.find("gpu-nvidia")
    assert isinstance(found, plugins.MissingPlugin)
    assert found.wrong
    assert f"jax-cuda13-pjrt 0.1.2 in {only.name} of PERFSCOPE_PLUGINS does not fit jax {JAX}" == found.reason
    assert found.packages == (f"jax-cuda13-pjrt=={JAX}",)


def test_the_folder_that_fits_counts_though_another_comes_first(
    only: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _cuda(only / "old", "0.1.2")
    _cuda(only / "new")
    monkeypatch.setenv("PERFSCOPE_PLUGINS", f"{only / 'old'}:{only / 'new'}")
    found = plugins.find("gpu-nvidia")
    assert isinstance(found, plugins.Plugin)
    assert found.folder == only / "new"


def test_a_damaged_one_says_what_it_lacks(only: Path) -> None:
    _package(only, "jax-cuda13-pjrt", JAX)
    found = plugins.find("gpu-nvidia")
    assert isinstance(found, plugins.MissingPlugin)
    assert "lacks xla_cuda_plugin.so" in found.reason


def test_libtpu_must_be_what_jax_asks_for(only: Path) -> None:
    wanted = plugins.required_version("jax", "libtpu")
    assert wanted is not None
    _package(only, "libtpu", "0.0.1", "libtpu/libtpu.so")
    found = plugins.find("tpu")
    assert isinstance(found, plugins.MissingPlugin)
    assert f"which requires libtpu{wanted}" in found.reason


@pytest.mark.parametrize("kind", plugins.KINDS)
def test_nothing_there_is_a_reason_and_a_command(only: Path, kind: plugins.Kind) -> None:
    found = plugins.find(kind)
    assert isinstance(found, plugins.MissingPlugin)
    assert found.reason
    assert found.install


@pytest.mark.parametrize(
    ("version", "wanted", "fits"),
    [
        ("0.0.42.1", "==0.0.42.*", True),
        ("0.0.43.0", "==0.0.42.*", False),
        ("0.10.3", "<=0.10.2", True),
        ("3.7.0", "==3.7.0", True),
        ("3.7.1", "==3.7.0", False),
    ],
)
def test_versions_are_held_against_what_is_asked(version: str, wanted: str, fits: bool) -> None:
    assert plugins._satisfies(version, wanted) is fits
