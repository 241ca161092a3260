"""The hashes that vocabularies name: MurmurHash3_x86_32 (Austin Appleby, public domain) and FarmHash Fingerprint64."""

_MASK = 0xFFFFFFFF


def _rotate(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (32 - bits))) & _MASK


def _scramble(block: int) -> int:
    return _rotate(block * 0xCC9E2D51 & _MASK, 15) * 0x1B873593 & _MASK


def murmur3_32(data: bytes, seed: int = 0) -> int:
    """MurmurHash3_x86_32 of `data`, unsigned."""
    state = seed & _MASK
    whole = len(data) & ~3
    for begin in range(0, whole, 4):
        state ^= _scramble(int.from_bytes(data[begin : begin + 4], "little"))
        state = (_rotate(state, 13) * 5 + 0xE6546B64) & _MASK
    if whole < len(data):
        state ^= _scramble(int.from_bytes(data[whole:], "little"))
    state ^= len(data)
    state = (state ^ (state >> 16)) * 0x85EBCA6B & _MASK
    state = (state ^ (state >> 13)) * 0xC2B2AE35 & _MASK
    return state ^ (state >> 16)


REMAINDERS = ("UNSIGNED", "FLOOR", "ABSOLUTE")


def murmur3_bucket(hashed: int, remainder: str, buckets: int) -> int:
    """`hashed`, an unsigned 32-bit hash, modulo `buckets`, by a Remainder of proto/bundle.proto.

    FLOOR and ABSOLUTE take it as a signed number, as Python's mmh3 and scikit-learn's FeatureHasher do.
    """
    signed = hashed - 2**32 if hashed >= 2**31 else hashed
    if remainder == "UNSIGNED":
        return hashed % buckets
    if remainder == "FLOOR":
        return signed % buckets
    if remainder == "ABSOLUTE":
        return abs(signed) % buckets
    raise ValueError(f"remainder: expected UNSIGNED, FLOOR or ABSOLUTE, got {remainder!r}")


def remainders_differ(one: str, other: str, buckets: int) -> bool:
    """Whether there is a hash whose bucket depends on which of the two is meant."""
    if one == other:
        return False
    return buckets > 2 if "ABSOLUTE" in (one, other) else 2**32 % buckets != 0


def hash_input(value, kind: str) -> bytes:
    """The bytes that are hashed for an id; `kind` is a HashInput: TEXT or INT64_LE."""
    if kind == "TEXT":
        return str(value).encode("utf-8")
    if kind == "INT64_LE":
        return int(value).to_bytes(8, "little", signed=True)
    raise ValueError(f"hash input: expected TEXT or INT64_LE, got {kind!r}")


# --- FarmHash Fingerprint64 (github.com/google/farmhash, farmhashna::Hash64) ------------------------------------------

_MASK64 = 0xFFFFFFFFFFFFFFFF
_K0, _K1, _K2 = 0xC3A5C85C97CB3127, 0xB492B66FBE98F273, 0x9AE16A3B2F90404F


def farm_fingerprint64(data: bytes) -> int:
    """FarmHash Fingerprint64 of `data`, unsigned."""
    if len(data) <= 16:
        return _farm_to_16(data)
    if len(data) <= 32:
        return _farm_to_32(data)
    if len(data) <= 64:
        return _farm_to_64(data)
    return _farm_long(data)


def _fetch(data, at, size=8):
    return int.from_bytes(data[at : at + size], "little")


def _right(value, bits):
    value &= _MASK64
    return (value >> bits | value << (64 - bits)) & _MASK64


def _mix(value):
    return value ^ (value >> 47)


def _pair(low, high, multiplier=0x9DDFEA08EB382D69):
    a = _mix((low ^ high) * multiplier & _MASK64)
    b = _mix((high ^ a) * multiplier & _MASK64)
    return b * multiplier & _MASK64


def _farm_to_16(data):
    size = len(data)
    multiplier = _K2 + size * 2
    if size >= 8:
        a = (_fetch(data, 0) + _K2) & _MASK64
        b = _fetch(data, size - 8)
        c = (_right(b, 37) * multiplier + a) & _MASK64
        d = (_right(a, 25) + b) * multiplier & _MASK64
        return _pair(c, d, multiplier)
    if size >= 4:
        return _pair(size + (_fetch(data, 0, 4) << 3), _fetch(data, size - 4, 4), multiplier)
    if size > 0:
        y = data[0] + (data[size >> 1] << 8)
        z = size + (data[size - 1] << 2)
        return _mix(y * _K2 & _MASK64 ^ z * _K0 & _MASK64) * _K2 & _MASK64
    return _K2


def _farm_to_32(data):
    size = len(data)
    multiplier = _K2 + size * 2
    a = _fetch(data, 0) * _K1 & _MASK64
    b = _fetch(data, 8)
    c = _fetch(data, size - 8) * multiplier & _MASK64
    d = _fetch(data, size - 16) * _K2 & _MASK64
    low = (_right(a + b, 43) + _right(c, 30) + d) & _MASK64
    return _pair(low, (a + _right(b + _K2, 18) + c) & _MASK64, multiplier)


def _farm_to_64(data):
    size = len(data)
    multiplier = _K2 + size * 2
    a, b = _fetch(data, 0) * _K2 & _MASK64, _fetch(data, 8)
    c, d = _fetch(data, size - 8) * multiplier & _MASK64, _fetch(data, size - 16) * _K2 & _MASK64
    y = (_right(a + b, 43) + _right(c, 30) + d) & _MASK64
    z = _pair(y, (a + _right(b + _K2, 18) + c) & _MASK64, multiplier)
    e, f = _fetch(data, 16) * multiplier & _MASK64, _fetch(data, 24)
    g, h = (y + _fetch(data, size - 32)) * multiplier & _MASK64, (z + _fetch(data, size - 24)) * multiplier & _MASK64
    low = (_right(e + f, 43) + _right(g, 30) + h) & _MASK64
    return _pair(low, (e + _right(f + a, 18) + g) & _MASK64, multiplier)


def _weak(data, at, a, b):
    """Two words of state from 32 bytes and a seed of two words."""
    w, x, y, z = (_fetch(data, at + offset) for offset in (0, 8, 16, 24))
    a = (a + w) & _MASK64
    b = _right(b + a + z, 21)
    c = a
    a = (a + x + y) & _MASK64
    return (a + z) & _MASK64, (b + _right(a, 44) + c) & _MASK64


def _farm_long(data):
    seed = 81
    x = (seed * _K2 + _fetch(data, 0)) & _MASK64
    y = (seed * _K1 + 113) & _MASK64
    z = _mix((y * _K2 + 113) & _MASK64) * _K2 & _MASK64
    v, w = (0, 0), (0, 0)
    last = (len(data) - 1) // 64 * 64
    for at in range(0, last, 64):
        x = _right(x + y + v[0] + _fetch(data, at + 8), 37) * _K1 & _MASK64
        y = _right(y + v[1] + _fetch(data, at + 48), 42) * _K1 & _MASK64
        x ^= w[1]
        y = (y + v[0] + _fetch(data, at + 40)) & _MASK64
        z = _right(z + w[0], 33) * _K1 & _MASK64
        v = _weak(data, at, v[1] * _K1, x + w[0])
        w = _weak(data, at + 32, z + w[1], y + _fetch(data, at + 16))
        z, x = x, z
    # The last 64 bytes, which may overlap those before.
    multiplier = _K1 + ((z & 0xFF) << 1)
    at = len(data) - 64
    w = (w[0] + ((len(data) - 1) & 63), w[1])
    v = (v[0] + w[0], v[1])
    w = (w[0] + v[0], w[1])
    x = _right(x + y + v[0] + _fetch(data, at + 8), 37) * multiplier & _MASK64
    y = _right(y + v[1] + _fetch(data, at + 48), 42) * multiplier & _MASK64
    x ^= w[1] * 9 & _MASK64
    y = (y + v[0] * 9 + _fetch(data, at + 40)) & _MASK64
    z = _right(z + w[0], 33) * multiplier & _MASK64
    v = _weak(data, at, v[1] * multiplier, x + w[0])
    w = _weak(data, at + 32, z + w[1], y + _fetch(data, at + 16))
    z, x = x, z
    low = (_pair(v[0], w[0], multiplier) + _mix(y) * _K0 + z) & _MASK64
    return _pair(low, (_pair(v[1], w[1], multiplier) + x) & _MASK64, multiplier)
