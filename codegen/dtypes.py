"""Element types, by the tags that Kernels and printers use."""

DTYPES = {
    "float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16", "float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2",
    "int64": "i64", "int32": "i32", "int16": "i16", "int8": "i8",
    "uint64": "u64", "uint32": "u32", "uint16": "u16", "uint8": "u8", "bool": "b8",
}  # fmt: skip
WIDTHS = {t: 8 if "64" in t else 4 if "32" in t else 2 if "16" in t else 1 for t in (*DTYPES.values(), "tf32")}  # bytes of an element
BYTES = ("e4m3", "i8")  # operands of one byte that tensor cores multiply
