#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Exports a torch.nn.Module for ap-import: python -m autopar.torch.export, of this checkout."""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))
from autopar.torch.export import main

main()
