"""The hash that ClickHouse's `checksums.txt` has of each file: CityHash128 of version 1.0.2 (Pike and Alakuijala),
chained over blocks of 2 KiB. Pure Python: some megabytes a second, which is enough to tell a few objects apart.
"""

from __future__ import annotations

import struct

_MASK = (1 << 64) - 1
_K0 = 0xC3A5C85C97CB3127
_K1 = 0xB492B66FBE98F273
_K2 = 0x9AE16A3B2F90404F
_K3 = 0xC949D7C7509E6557
_K_MUL = 0x9DDFEA08EB382D69
_BLOCK_BYTES = 2048

Pair = tuple[int, int]


class FileHash:
    """Takes the bytes of a file as they come."""

    def __init__(self) -> None:
        self._state: Pair = (0, 0)
        self._rest = b""

    def update(self, data: bytes) -> None:
        """The next bytes of the file."""
        data = self._rest + data
        whole = len(data) - len(data) % _BLOCK_BYTES
        for start in range(0, whole, _BLOCK_BYTES):
            self._state = _city128(data[start : start + _BLOCK_BYTES], self._state)
        self._rest = data[whole:]

    def digest(self) -> bytes:
        """As `checksums.txt` has it."""
        state = _city128(self._rest, self._state) if self._rest else self._state
        return struct.pack("<QQ", *state)


def _rotate(value: int, shift: int) -> int:
    return (value >> shift | value << 64 - shift) & _MASK


def _shift_mix(value: int) -> int:
    return value ^ value >> 47


def _hash_16(low: int, high: int) -> int:
    mixed = _shift_mix((low ^ high) * _K_MUL & _MASK)
    return _shift_mix((high ^ mixed) * _K_MUL & _MASK) * _K_MUL & _MASK


def _at(data: bytes, offset: int) -> int:
    return int.from_bytes(data[offset : offset + 8], "little")


def _up_to_16(data: bytes) -> int:
    size = len(data)
    if size > 8:
        first, last = _at(data, 0), _at(data, size - 8)
        return _hash_16(first, _rotate(last + size & _MASK, size)) ^ last
    if size >= 4:
        first, last = int.from_bytes(data[:4], "little"), int.from_bytes(data[-4:], "little")
        return _hash_16(size + (first << 3), last)
    if size:
        y = data[0] + (data[size >> 1] << 8)
        z = size + (data[-1] << 2)
        return _shift_mix((y * _K2 ^ z * _K3) & _MASK) * _K2 & _MASK
    return _K2


def _murmur(data: bytes, seed: Pair) -> Pair:
    a, b = seed
    size = len(data)
    if size <= 16:
        a = _shift_mix(a * _K1 & _MASK) * _K1 & _MASK
        c = (b * _K1 + _up_to_16(data)) & _MASK
        d = _shift_mix(a + (_at(data, 0) if size >= 8 else c) & _MASK)
    else:
        c = _hash_16(_at(data, size - 8) + _K1 & _MASK, a)
        d = _hash_16(b + size & _MASK, c + _at(data, size - 16) & _MASK)
        a = a + d & _MASK
        for place in range(0, size - 16, 16):
            a = (a ^ _shift_mix(_at(data, place) * _K1 & _MASK) * _K1) * _K1 & _MASK
            b ^= a
            c = (c ^ _shift_mix(_at(data, place + 8) * _K1 & _MASK) * _K1) * _K1 & _MASK
            d ^= c
    a, b = _hash_16(a, c), _hash_16(d, b)
    return a ^ b, _hash_16(b, a)


def _weak_32(words: tuple[int, ...], a: int, b: int) -> Pair:
    """Of four words and two seeds."""
    a = a + words[0] & _MASK
    b = _rotate(b + a + words[3] & _MASK, 21)
    c = a
    a = a + words[1] + words[2] & _MASK
    b = b + _rotate(a, 44) & _MASK
    return a + words[3] & _MASK, b + c & _MASK


def _city128(data: bytes, seed: Pair) -> Pair:
    size = len(data)
    if size < 128:
        return _murmur(data, seed)
    x, y = seed
    z = size * _K1 & _MASK
    v1 = (_rotate(y ^ _K1, 49) * _K1 + _at(data, 0)) & _MASK
    v2 = (_rotate(v1, 42) * _K1 + _at(data, 8)) & _MASK
    w1 = (_rotate(y + z & _MASK, 35) * _K1 + x) & _MASK
    w2 = _rotate(x + _at(data, 88) & _MASK, 53) * _K1 & _MASK
    rest = size % 128
    for words in struct.iter_unpack("<8Q", data[: size - rest]):
        x = _rotate(x + y + v1 + words[2] & _MASK, 37) * _K1 & _MASK
        y = _rotate(y + v2 + words[6] & _MASK, 42) * _K1 & _MASK
        x ^= w2
        y ^= v1
        z = _rotate(z ^ w1, 33)
        v1, v2 = _weak_32(words[:4], v2 * _K1 & _MASK, x + w1 & _MASK)
        w1, w2 = _weak_32(words[4:], z + w2 & _MASK, y)
        x, z = z, x
    y = (y + _rotate(w1, 37) * _K0 + z) & _MASK
    x = (x + _rotate(v1 + z & _MASK, 49) * _K0) & _MASK
    for place in range(size - 32, size - rest - 32, -32) if rest else ():
        words = struct.unpack_from("<4Q", data, place)
        y = (_rotate(y - x & _MASK, 42) * _K0 + v2) & _MASK
        w1 = w1 + words[2] & _MASK
        x = (_rotate(x, 49) * _K0 + w1) & _MASK
        w1 = w1 + v1 & _MASK
        v1, v2 = _weak_32(words, v1, v2)
    x, y = _hash_16(x, v1), _hash_16(y, w1)
    return (_hash_16(x + v2 & _MASK, w2) + y) & _MASK, _hash_16(x + w2 & _MASK, y + v2 & _MASK)
