"""The hashes that vocabularies name: MurmurHash3_x86_32 (Austin Appleby, public domain)."""

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


def hash_input(value, kind: str) -> bytes:
    """The bytes that are hashed for an id; `kind` is a HashInput: TEXT or INT64_LE."""
    if kind == "TEXT":
        return str(value).encode("utf-8")
    if kind == "INT64_LE":
        return int(value).to_bytes(8, "little", signed=True)
    raise ValueError(f"hash input: expected TEXT or INT64_LE, got {kind!r}")
