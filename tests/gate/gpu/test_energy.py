"""On a GPU: the energy counter and integrated instant power agree under a steady load, and idle draws less than load.

A process of its own keeps the GPU busy with matrix products for the whole window, so both methods see the same load and
no edge decides.
"""

import os
import subprocess
import sys
import time

import pytest

from pytest_specdec.hardware import gpus, open_nvml
from pytest_specdec.telemetry.energy import NVML_COUNTER, local_meter
from pytest_specdec.telemetry.meter import Instruments, PowerMeter, Subject, Watch
from pytest_specdec.telemetry.nvml import Device

pytestmark = pytest.mark.gpu
WINDOW_SECONDS = 12.0
LOAD = """
import sys, torch
x = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
print("context", flush=True)
sys.stdin.readline()
(x @ x).sum().item()
print("busy", flush=True)
while True:
    for _ in range(50):
        x @ x
    torch.cuda.synchronize()
"""


@pytest.fixture
def load():
    """A process that holds a CUDA context, and keeps the GPU busy from the first line that it is sent."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": gpus().visible[0].uuid}
    process = subprocess.Popen(
        [sys.executable, "-c", LOAD],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout.readline() == "context\n"
    yield process
    process.kill()
    process.wait()


def test_counter_and_instant_power_agree(load):
    """Within 5 % over a window of steady load; the idle GPU draws less than the busy one."""
    card = gpus().visible[0]
    given = {"CUDA_VISIBLE_DEVICES": card.uuid}
    counter = local_meter(Subject(card.name, load.pid, 1, given), Instruments())
    power = PowerMeter([Device(open_nvml(), card.uuid)], Watch([], Instruments()), Instruments())
    for meter in (power, counter):
        meter.start()
    load.stdin.write("\n")
    load.stdin.flush()
    assert load.stdout.readline() == "busy\n"
    time.sleep(2)
    for meter in (counter, power):
        meter.begin_round()
    time.sleep(WINDOW_SECONDS)
    for meter in (power, counter):
        meter.end_round()
    counted, sampled = counter.stop(1), power.stop(1)
    print(f"\ncounter {counted}\ninstant power {sampled}")
    assert counted.method == NVML_COUNTER
    assert counted.scope == (card.uuid,)
    assert counted.mean_watts.value == pytest.approx(sampled.mean_watts.value, rel=0.05)
    assert counted.idle_watts.value < 0.9 * counted.mean_watts.value
