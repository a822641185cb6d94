"""Say which CUDA devices torch sees: ``python -m jobs.cuda.devices``.

Exit code: 0 some, 1 torch cannot take them up, 3 none.
"""

import json
import sys

import torch

UNUSABLE, NO_DEVICE = 1, 3


def main() -> int:
    """Print versions and devices as JSON; return the exit code."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    try:
        devices = [
            {
                "name": torch.cuda.get_device_name(number),
                "bytes": torch.cuda.get_device_properties(number).total_memory,
            }
            for number in range(count)
        ]
    except (RuntimeError, ValueError) as error:  # a driver's, or of PYTORCH_ALLOC_CONF
        sys.stderr.write(f"torch sees {count} CUDA devices and cannot use them: {error}\n")
        return UNUSABLE
    found = {"torch": torch.__version__, "cuda": torch.version.cuda, "devices": devices}
    sys.stdout.write(json.dumps(found) + "\n")
    return 0 if devices else NO_DEVICE


if __name__ == "__main__":
    sys.exit(main())
