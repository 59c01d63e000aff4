"""Which formats are decoded, told by content alone.

An allow-list: each decoder is a way in for hostile bytes, so only what people have as pictures is open. Not
EPS, PDF, SVG or WMF (they run programs or fetch), not the thirty formats of old scanners and games, not QOI
(Pillow decodes it in Python: minutes for one hostile file). File names and content types are never believed.
"""

from __future__ import annotations

from clipfleet.schemas.errors import ErrorCode, error_for

__all__ = ["COST", "FORMATS", "sniff"]

FORMATS = ("AVIF", "BMP", "GIF", "ICO", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")

# Memory of the decoder per pixel over that of a plain one, rounded (measured: OpenJPEG 44 bytes a pixel, libwebp with
# its two canvases 15, a PNG 4 and as much again for its RGB).
COST = {"JPEG2000": 8, "AVIF": 2, "WEBP": 2}

_SIGNATURES: tuple[tuple[bytes, str], ...] = (
    (b"\xff\xd8\xff", "JPEG"),
    (b"\x89PNG\r\n\x1a\n", "PNG"),
    (b"GIF87a", "GIF"),
    (b"GIF89a", "GIF"),
    (b"II*\x00", "TIFF"),
    (b"MM\x00*", "TIFF"),
    (b"II+\x00", "TIFF"),
    (b"MM\x00+", "TIFF"),
    (b"BM", "BMP"),
    (b"\x00\x00\x01\x00", "ICO"),
    (b"\xff\x4f\xff\x51", "JPEG2000"),
    (b"\x00\x00\x00\x0cjP  \r\n\x87\n", "JPEG2000"),
)
_NETPBM = (b"P1", b"P2", b"P3", b"P4", b"P5", b"P6", b"Pf")
_AVIF_BRANDS = (b"avif", b"avis")

# For the message alone: what people send by mistake.
_OTHERS: tuple[tuple[bytes, str], ...] = (
    (b"%PDF", "a PDF"),
    (b"%!PS", "PostScript"),
    (b"<svg", "SVG, which is not rasterised here"),
    (b"<!doctype html", "an HTML page"),
    (b"<html", "an HTML page"),
    (b"8BPS", "a Photoshop file"),
    (b"qoif", "QOI"),
    (b"\x1f\x8b", "gzip"),
    (b"PK\x03\x04", "a zip archive"),
    (b"{", "JSON"),
)
_BRANDS = {b"heic": "HEIC", b"heix": "HEIC", b"mif1": "HEIF", b"msf1": "HEIF"}


def sniff(data: bytes) -> str:
    """The format of ``data``, one of ``FORMATS``.

    Raises:
        RequestFailed: ``unsupported_media``, naming what it is instead where that is known.
    """
    head = data[:4096]
    for signature, name in _SIGNATURES:
        if head.startswith(signature):
            return name
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "WEBP"
    if head[:2] in _NETPBM and head[2:3] in b" \t\r\n\x0b\x0c#" and len(head) > 2:
        return "PPM"
    if head[4:8] == b"ftyp" and (head[8:12] in _AVIF_BRANDS or _compatible(head)):
        return "AVIF"
    raise error_for(ErrorCode.UNSUPPORTED_MEDIA, _explain(head))


def _compatible(head: bytes) -> bool:
    # Some encoders write the general brand mif1 first and avif among the compatible ones.
    length = min(int.from_bytes(head[:4], "big"), len(head))
    return head[8:12] in (b"mif1", b"msf1") and any(head[at : at + 4] in _AVIF_BRANDS for at in range(16, length, 4))


def _explain(head: bytes) -> str:
    wanted = "send " + ", ".join(FORMATS[:-1]) + f" or {FORMATS[-1]}"
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    lowered = text.lower()
    for signature, name in _OTHERS:
        if lowered.startswith(signature.lower()):
            return f"this is {name}; {wanted}"
    if lowered.startswith(b"<?xml") and b"<svg" in lowered:
        return f"this is SVG, which is not rasterised here; {wanted}"
    if head[4:8] == b"ftyp":
        return f"this is {_BRANDS.get(head[8:12], 'a video')}; {wanted}"
    if not head.strip(b"\x00"):
        return f"nothing but NUL bytes; {wanted}"
    return f"no picture of a known format; {wanted}"
