# SPDX-License-Identifier: Apache-2.0
from rnic._disk import Found, New

SINGLE: int
TAKEN: int

def load(folder: int, names: list[bytes], most: int, room: int) -> tuple[bytes, list[Found | int]]: ...
def store(folder: int, temporary: bytes, files: list[New], replace: bool) -> list[int]: ...
