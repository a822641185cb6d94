"""Say which CUDA devices torch sees: ``python -m jobs.cuda.devices``; exit code 3: none."""

import json
import sys

import torch

NO_DEVICE = 3


def main() -> int:
    """Print versions and devices as JSON; return the exit code."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    devices = [
        {
            "name": torch.cuda.get_device_name(number),
            "bytes": torch.cuda.get_device_properties(number).total_memory,
        }
        for number in range(count)
    ]
    found = {"torch": torch.__version__, "cuda": torch.version.cuda, "devices": devices}
    sys.stdout.write(json.dumps(found) + "\n")
    return 0 if devices else NO_DEVICE


if __name__ == "__main__":
    sys.exit(main())
