"""Protocol buffers of ONNX models, without ONNX's library."""


def varint(n):
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    return bytes(out + bytes([n]))


def fields(data):
    """Fields of a protobuf message: number, wire type, the value's bytes."""

    def number(at):
        n = shift = 0
        while True:
            n |= (data[at] & 127) << shift
            at, shift = at + 1, shift + 7
            if data[at - 1] < 128:
                return n, at

    at = 0
    while at < len(data):
        key, at = number(at)
        if key & 7 == 2:
            size, start = number(at)
            at = start + size
        else:
            start, at = at, {0: number(at)[1], 1: at + 8, 5: at + 4}[key & 7]
        yield key >> 3, key & 7, data[start:at]


def field(key, kind, value):
    return varint(key << 3 | kind) + (varint(len(value)) if kind == 2 else b"") + value


def without_weights(model):
    """An ONNX model whose initialisers over 1 KiB say that they are in a file "weights"."""

    def tensor(data):
        out = b""
        for key, kind, value in fields(data):
            if key == 9 and len(value) > 1024:  # raw_data: external_data, data_location
                entry = field(1, 2, b"location") + field(2, 2, b"weights")
                out += field(13, 2, entry) + field(14, 0, varint(1))
            else:
                out += field(key, kind, bytes(value))
        return out

    def graph(data):
        return b"".join(field(key, kind, tensor(value) if key == 5 else bytes(value))
                        for key, kind, value in fields(data))

    return b"".join(field(key, kind, graph(value) if key == 7 else bytes(value))
                    for key, kind, value in fields(memoryview(model)))
