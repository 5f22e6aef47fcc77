"""Whether rectangles of a picture show what they should.

usage: png_parts.py PNG <parts.json
parts.json: [{"name": .., "box": [left, top, width, height], "colors": ["#rrggbb", ..]}, ..].
Every box must lie in the picture, hold more than its background, and have at least 20 pixels of
each colour. PNG: 8 bits, RGB or RGBA, not interlaced, as Chromium writes it (RFC 2083).
"""
import json
import struct
import sys
import zlib


def pixels(path):
    data = open(path, "rb").read()
    assert data[:8] == b"\x89PNG\r\n\x1a\n", "no PNG"
    at, packed = 8, b""
    while at < len(data):
        size, kind = struct.unpack(">I4s", data[at:at + 8])
        body = data[at + 8:at + 8 + size]
        if kind == b"IHDR":
            width, height, depth, color, _, _, interlaced = struct.unpack(">IIBBBBB", body)
            assert depth == 8 and color in (2, 6) and not interlaced
        if kind == b"IDAT":
            packed += body
        at += 12 + size
    step = 4 if color == 6 else 3
    raw, rows, before = zlib.decompress(packed), [], bytes(width * step)
    for y in range(height):
        start = y * (width * step + 1)
        how, row = raw[start], bytearray(raw[start + 1:start + 1 + width * step])
        for i in range(len(row)):
            left = row[i - step] if i >= step else 0
            up, corner = before[i], before[i - step] if i >= step else 0
            if how == 1:
                row[i] = (row[i] + left) & 255
            elif how == 2:
                row[i] = (row[i] + up) & 255
            elif how == 3:
                row[i] = (row[i] + (left + up) // 2) & 255
            elif how == 4:
                p = left + up - corner
                near = min((abs(p - left), 0, left), (abs(p - up), 1, up), (abs(p - corner), 2, corner))
                row[i] = (row[i] + near[2]) & 255
        rows.append(row)
        before = row
    return width, height, step, rows


def main():
    width, height, step, rows = pixels(sys.argv[1])
    bad = 0
    for part in json.load(sys.stdin):
        left, top, wide, high = (round(v) for v in part["box"])
        if left < 0 or top < 0 or wide < 20 or high < 8 or left + wide > width or top + high > height:
            print(f"{part['name']}: box {part['box']} is not in the picture of {width} x {height}")
            bad += 1
            continue
        count = {}
        for row in rows[top:top + high]:
            for x in range(left, left + wide):
                color = bytes(row[x * step:x * step + 3])
                count[color] = count.get(color, 0) + 1
        if len(count) < 3:
            print(f"{part['name']}: empty")
            bad += 1
        for color in part["colors"]:
            if count.get(bytes.fromhex(color[1:]), 0) < 20:
                print(f"{part['name']}: no {color}")
                bad += 1
    return bad > 0


sys.exit(main())
