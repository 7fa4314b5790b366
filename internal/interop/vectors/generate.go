// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build ignore

// This program writes the golden vectors as OTEP 4719 and OTEP 4947 specify them. It imports only
// the standard library, so that the vectors are independent of otelctx.
package main

import (
	"bytes"
	"encoding/binary"
	"encoding/csv"
	"encoding/hex"
	"log"
	"math"
	"os"
	"strings"
)

type vector struct {
	name    string
	bytes   []byte
	verdict string
	expect  string
	rule    string
}

func main() {
	write("headers.csv", headers())
	write("payloads.csv", payloads())
	write("records.csv", records())
}

func write(name string, vectors []vector) {
	f, err := os.Create(name)
	if err != nil {
		log.Fatal(err)
	}
	w := csv.NewWriter(f)
	rows := [][]string{{"name", "bytes", "verdict", "expect", "rule"}}
	for _, v := range vectors {
		rows = append(rows, []string{v.name, hex.EncodeToString(v.bytes), v.verdict, v.expect, v.rule})
	}
	if err := w.WriteAll(rows); err != nil {
		log.Fatal(err)
	}
	if err := f.Close(); err != nil {
		log.Fatal(err)
	}
}

func headers() []vector {
	const structure, reading = "4719 Header Structure", "4719 Reading Protocol"
	header := func(signature string, version, size uint32, published, payload uint64) []byte {
		out := append([]byte(signature), make([]byte, 24)...)
		binary.LittleEndian.PutUint32(out[8:], version)
		binary.LittleEndian.PutUint32(out[12:], size)
		binary.LittleEndian.PutUint64(out[16:], published)
		binary.LittleEndian.PutUint64(out[24:], payload)
		return out
	}
	const at, now = 0x7f0000001000, 123456789
	return []vector{
		{"correct", header("OTEL_CTX", 2, 100, now, at), "accept", "payload of 100 bytes at 0x7f0000001000", structure},
		{"payload of one byte", header("OTEL_CTX", 2, 1, now, at), "accept", "payload of 1 bytes at 0x7f0000001000", structure},
		{"largest payload", header("OTEL_CTX", 2, 65536, now, at), "accept", "payload of 65536 bytes at 0x7f0000001000", structure},
		{"wall clock time", header("OTEL_CTX", 2, 100, 1790000000000000000, at), "accept", "payload of 100 bytes at 0x7f0000001000", structure},
		{"being changed", header("OTEL_CTX", 2, 100, 0, at), "retry", "", reading + ", step 3"},
		{"being changed, other fields undefined", header("OTEL_CTX", 2, math.MaxUint32, 0, 0), "retry", "", reading + ", step 3"},
		{"not signed yet", header("\x00\x00\x00\x00\x00\x00\x00\x00", 0, 0, 0, 0), "retry", "", reading + ", step 2"},
		{"another signature", header("OTEL_CTY", 2, 100, now, at), "skip", "", reading + ", step 2"},
		{"signature in lower case", header("otel_ctx", 2, 100, now, at), "skip", "", reading + ", step 2"},
		{"signature of seven characters", header("OTEL_CT\x00", 2, 100, now, at), "skip", "", reading + ", step 2"},
		{"version 0", header("OTEL_CTX", 0, 100, now, at), "skip", "", reading + ", step 2"},
		{"version 3", header("OTEL_CTX", 3, 100, now, at), "skip", "", reading + ", step 2"},
		{"version in the other byte order", header("OTEL_CTX", 2<<24, 100, now, at), "skip", "", reading + ", step 2"},
		{"no payload", header("OTEL_CTX", 2, 0, now, at), "reject", "", structure},
		{"payload at address 0", header("OTEL_CTX", 2, 100, now, 0), "reject", "", structure},
		{"payload too large for readers", header("OTEL_CTX", 2, 65537, now, at), "reject", "", structure},
		{"payload of 4 GiB", header("OTEL_CTX", 2, math.MaxUint32, now, at), "reject", "", structure},
		{"payload in the kernel's half", header("OTEL_CTX", 2, 100, now, 0xffff800000000000), "reject", "", structure},
		{"payload wraps around", header("OTEL_CTX", 2, 100, now, math.MaxUint64-10), "reject", "", structure},
	}
}

// Protobuf, encoded by hand.

func field(number int, data []byte) []byte {
	return append(binary.AppendUvarint([]byte{byte(number<<3 | 2)}, uint64(len(data))), data...)
}

func text(s string) []byte { return field(1, []byte(s)) }

func number(n uint64) []byte { return binary.AppendUvarint([]byte{3 << 3}, n) }

func keyValue(outer int, key string, value []byte) []byte {
	return field(outer, append(field(1, []byte(key)), field(2, value)...))
}

func array(values ...[]byte) []byte {
	var list []byte
	for _, v := range values {
		list = append(list, field(1, v)...)
	}
	return field(5, list)
}

func payloads() []vector {
	const format, reference = "4719 Payload Format", "4947 Thread-Local Reference Data"
	resource := func(attributes ...[]byte) []byte { return field(1, bytes.Join(attributes, nil)) }
	service := keyValue(1, "service.name", text("shop"))
	schema := keyValue(2, "threadlocal.schema_version", text("tlsdesc_v1_dev"))
	deep := text("bottom")
	for range 60 {
		deep = array(deep)
	}
	bottomless := text("bottom")
	for range 5000 {
		bottomless = array(bottomless)
	}
	return []vector{
		{"resource alone", resource(service), "accept", "service.name=shop", format},
		{"two attributes", resource(service, keyValue(1, "host.name", text("a"))), "accept", "service.name=shop host.name=a", format},
		{"a number", resource(service, keyValue(1, "process.pid", number(4711))), "accept", "service.name=shop process.pid=4711", format},
		{"a negative number", resource(keyValue(1, "n", number(math.MaxUint64))), "accept", "n=-1", format},
		{"an array", resource(keyValue(1, "a", array(text("x"), text("y")))), "accept", "a=[x y]", format},
		{"an empty value", resource(keyValue(1, "a", nil)), "accept", "a=", format},
		{"an attribute beside the resource", append(resource(service), schema...), "accept", "service.name=shop threadlocal.schema_version=tlsdesc_v1_dev", reference},
		{"attributes before the resource", append(bytes.Clone(schema), resource(service)...), "accept", "service.name=shop threadlocal.schema_version=tlsdesc_v1_dev", format},
		{"a key map", append(resource(service), keyValue(2, "threadlocal.attribute_key_map", array(text("http_route"), text("http_method")))...), "accept", "service.name=shop threadlocal.attribute_key_map=[http_route http_method]", reference},
		{"an unknown field", append(resource(service), field(15, []byte("later"))...), "accept", "service.name=shop", format},
		{"60 arrays deep", resource(keyValue(1, "a", deep)), "accept", "a=" + strings.Repeat("[", 60) + "bottom" + strings.Repeat("]", 60), format},
		{"5,000 arrays deep", resource(keyValue(1, "a", bottomless)), "reject", "", format},
		{"cut in a value", resource(service)[:12], "reject", "", format},
		{"cut in a length", []byte{0x0a, 0x80}, "reject", "", format},
		{"endless length", []byte{0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f}, "reject", "", format},
		{"a key that is not UTF-8", resource(keyValue(1, "\xff", text("a"))), "reject", "", format},
		{"a value that is not UTF-8", resource(keyValue(1, "a", text("\xff"))), "reject", "", format},
		{"no message", bytes.Repeat([]byte{0xff}, 64), "reject", "", format},
	}
}

func records() []vector {
	const layout, reading = "4947 Thread-Local Context Record", "4947 Reading Protocol"
	trace := bytes.Repeat([]byte{0xaa}, 16)
	span := bytes.Repeat([]byte{0xbb}, 8)
	record := func(trace, span []byte, valid, flags byte, size int, data string) []byte {
		out := append(append(bytes.Clone(trace), span...), valid, flags)
		return append(binary.LittleEndian.AppendUint16(out, uint16(size)), data...)
	}
	whole := func(valid, flags byte, data string) []byte { return record(trace, span, valid, flags, len(data), data) }
	ids := "trace_id=" + strings.Repeat("aa", 16) + " span_id=" + strings.Repeat("bb", 8) + " trace_flags="
	long := strings.Repeat("x", 255)
	return []vector{
		{"no attributes", whole(1, 1, ""), "accept", ids + "1", layout},
		{"not sampled", whole(1, 0, ""), "accept", ids + "0", layout},
		{"sampled, random id", whole(1, 3, ""), "accept", ids + "3", layout},
		{"one attribute", whole(1, 1, "\x00\x04shop"), "accept", ids + "1 http_route=shop", layout},
		{"two attributes", whole(1, 1, "\x00\x01a\x02\x02bc"), "accept", ids + "1 http_route=a user_id=bc", layout},
		{"an empty value", whole(1, 1, "\x01\x00"), "accept", ids + "1 http_method=", layout},
		{"a value of 255 bytes", whole(1, 1, "\x00\xff"+long), "accept", ids + "1 http_route=" + long, layout},
		{"a key twice: the last counts", whole(1, 1, "\x00\x01a\x00\x01b"), "accept", ids + "1 http_route=b", layout},
		{"an unknown key is ignored", whole(1, 1, "\x07\x01a\x00\x01b"), "accept", ids + "1 http_route=b", layout},
		{"the last attribute is cut", whole(1, 1, "\x00\x01a\x01\x09b"), "accept", ids + "1 http_route=a", layout},
		{"half an attribute", whole(1, 1, "\x00\x01a\x01"), "accept", ids + "1 http_route=a", layout},
		{"bytes behind the size do not count", record(trace, span, 1, 1, 3, "\x00\x01a\x01\x01b"), "accept", ids + "1 http_route=a", layout},
		{"not valid", whole(0, 1, ""), "none", "", reading},
		{"valid is 2", whole(2, 1, ""), "none", "", layout},
		{"valid is 255", whole(255, 1, ""), "none", "", layout},
		{"no ids", record(make([]byte, 16), make([]byte, 8), 1, 0, 0, ""), "none", "", layout},
		{"no trace id", record(make([]byte, 16), span, 1, 0, 0, ""), "none", "", layout},
		{"no span id", record(trace, make([]byte, 8), 1, 0, 0, ""), "none", "", layout},
	}
}
