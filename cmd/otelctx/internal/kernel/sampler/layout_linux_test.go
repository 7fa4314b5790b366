// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package sampler

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/reader"
)

func bits(features ...programFeature) (has uint32) {
	for _, f := range features {
		has |= uint32(f)
	}
	return has
}

// TestLayouts checks that the BPF program reads all carriers that it can, and only provable carriers if there are
// any. If a carrier is chosen, the program reads only that one, and Check says why it cannot be read.
func TestLayouts(t *testing.T) {
	runtime := reader.RuntimeOffsets{GM: 48, GGoid: 152, GLabels: 352, MCurg: 184, MProcid: 64, TLSG: -8}
	partial := reader.RuntimeOffsets{GGoid: 152, GLabels: 352, MCurg: 184}
	noLabels := runtime
	noLabels.GLabels = 0
	ring := reader.Table{Address: 0x1000, Capacity: 8, HeaderSize: 64, EntrySize: 96, Fields: map[string]int{"m": 48}}
	table := reader.Table{Address: 0x2000, HeaderSize: 128, EntrySize: 16, Capacity: 65536}
	var (
		record    = reader.Carrier{Kind: reader.GoroutineRecord, Record: reader.RecordLayout{Offset: 24}, Provable: true}
		slots     = reader.Carrier{Kind: reader.ThreadSlots, Table: ring, Provable: true}
		goroutine = reader.Carrier{Kind: reader.GoroutineTable, Table: table, Provable: true}
		layout1   = reader.Carrier{Kind: reader.ThreadSlots, Table: ring}
		broken    = reader.Carrier{Kind: reader.GoroutineRecord, Record: reader.RecordLayout{Offset: 24}, Provable: true, Err: errors.New("broken")}
		noTable   = reader.Carrier{Kind: reader.GoroutineTable, Err: errors.New("broken")}
	)
	several := []reader.Carrier{layout1, noTable, record}
	all := []programFeature{
		programFeatureHAS_GOROUTINE, programFeatureHAS_TLS_G, programFeatureHAS_G_M, programFeatureHAS_M_PROCID,
	}
	inRecord, inLabels := bits(append(all, programFeatureHAS_RECORD)...), bits(append(all, programFeatureHAS_LABELS)...)
	const unknownVersion = "the layout of labels is known for Go 1.24 to 1.27, and not for "
	image := Image{PID: 7, start: 8, execs: 9}
	for name, test := range map[string]struct {
		chosen   Carrier
		version  string // of Go
		runtime  reader.RuntimeOffsets
		carriers []reader.Carrier
		want     uint32
		err      string
	}{
		"nothing":                         {0, "", runtime, nil, 0, ""},
		"record":                          {0, "", runtime, []reader.Carrier{record}, inRecord, ""},
		"thread slots":                    {0, "", runtime, []reader.Carrier{slots}, bits(append(all, programFeatureHAS_THREAD_SLOTS, programFeatureHAS_OWNERS)...), ""},
		"goroutine table":                 {0, "", runtime, []reader.Carrier{goroutine}, bits(append(all, programFeatureHAS_GOROUTINE_TABLE)...), ""},
		"layout 1":                        {0, "", runtime, []reader.Carrier{layout1}, bits(programFeatureHAS_THREAD_SLOTS), ""},
		"layout 1, no runtime":            {0, "", reader.RuntimeOffsets{}, []reader.Carrier{layout1}, bits(programFeatureHAS_THREAD_SLOTS), ""},
		"record and layout 1":             {0, "", runtime, []reader.Carrier{layout1, record}, inRecord, ""},
		"broken":                          {0, "", runtime, []reader.Carrier{broken}, 0, ""},
		"broken and layout 1":             {0, "", runtime, []reader.Carrier{broken, layout1}, bits(programFeatureHAS_THREAD_SLOTS), ""},
		"not all of the runtime":          {0, "", partial, []reader.Carrier{record}, bits(programFeatureHAS_GOROUTINE, programFeatureHAS_RECORD), ""},
		"all but the broken":              {0, "", runtime, several, inRecord, ""},
		"only the record":                 {GoroutineRecord, "", runtime, several, inRecord, ""},
		"only thread slots":               {ThreadSlots, "", runtime, several, bits(programFeatureHAS_THREAD_SLOTS), ""},
		"only the broken goroutine table": {GoroutineTable, "", runtime, several, 0, "broken"},
		"missing thread slots":            {ThreadSlots, "", runtime, []reader.Carrier{record}, 0, "the process does not have this carrier"},
		"nothing yet":                     {ThreadSlots, "", runtime, nil, 0, ""},
		"labels":                          {Labels, "go1.26.8", runtime, several, inLabels, ""},
		"labels and no carrier":           {Labels, "go1.24rc1 X:one", runtime, nil, inLabels, ""},
		"labels of a development version": {Labels, "devel go1.27-0123abc Mon Jan 2", runtime, several, inLabels, ""},
		"labels of unknown place":         {Labels, "go1.26.8", noLabels, several, 0, "the process does not say where goroutines keep their labels"},
		"labels as a map":                 {Labels, "go1.23.9", runtime, several, 0, unknownVersion + `"go1.23.9"`},
		"labels of a newer version":       {Labels, "go1.28", runtime, several, 0, unknownVersion + `"go1.28"`},
		"labels of no version":            {Labels, "", runtime, several, 0, unknownVersion + `""`},
	} {
		t.Run(name, func(t *testing.T) {
			layout := &reader.ThreadLayout{Carriers: test.carriers, Runtime: test.runtime, Advertisement: goContext(test.version)}
			got := newLayout(image, layout, test.chosen)
			if got.Has&bits(programFeatureHAS_GOROUTINE_TABLE) != 0 {
				assert.EqualValues(t, 0x2080, got.Entries)
			}
			assert.Equal(t, test.want, got.Has)
			assert.Equal(t, programImage{Pid: 7, Start: 8, Execs: 9}, got.Image)
			if err := test.chosen.Check(layout); test.err == "" {
				assert.NoError(t, err)
			} else {
				assert.EqualError(t, err, test.err)
			}
		})
	}
	for _, carrier := range []Carrier{0, Labels, GoroutineRecord} {
		assert.NoError(t, carrier.Check(nil))
	}
	assert.Equal(t, programLayout{Image: programImage{Pid: 7, Start: 8, Execs: 9}}, newLayout(image, nil, 0))

	got := newLayout(image, &reader.ThreadLayout{Carriers: []reader.Carrier{record, slots}, Runtime: runtime}, 0)
	assert.Equal(t, programLayout{
		Image: programImage{Pid: 7, Start: 8, Execs: 9}, Has: got.Has, TlsG: -8, G_m: 48, G_goid: 152, G_labels: 352, M_curg: 184, M_procid: 64, RecordOffset: 24,
		Threads: programRing{
			Slots: 0x1040, Capacity: 8, SlotSize: 96, FieldsSize: 56, TraceIdHigh: noField, TraceIdLow: noField, SpanId: noField, InUse: noField,
			TraceFlags: noField, AttrsSize: noField, Seq: noField, OwnerGoid: noField, SpanRef: noField,
			M: 48, Tid: noField, Attrs: noField,
		},
	}, got)
}

// TestCarrierNumbers checks that the BPF program numbers carriers like package reader.
func TestCarrierNumbers(t *testing.T) {
	assert.Equal(t, int(reader.ThreadSlots), int(programCarrierTHREAD_SLOTS))
	assert.Equal(t, int(reader.GoroutineTable), int(programCarrierGOROUTINE_TABLE))
	assert.Equal(t, int(reader.GoroutineRecord), int(programCarrierGOROUTINE_RECORD))
	assert.Equal(t, int(Labels), int(programCarrierLABELS))
	assert.Equal(t, "labels", Labels.String())
	assert.Equal(t, "thread_slots", ThreadSlots.String())
}

func encodeEvent(t testing.TB, h programHeader, data ...byte) []byte {
	t.Helper()
	b, err := binary.Append(nil, binary.NativeEndian, h)
	require.NoError(t, err)
	return append(b, data...)
}

func TestDecode(t *testing.T) {
	var data []byte
	for _, address := range []uint64{11, 12, 0, 21, 22} {
		data = binary.NativeEndian.AppendUint64(data, address)
	}
	data = append(data, 1, 2, 'h', 'i')
	h := programHeader{
		Time: 5, Goid: 6, Image: programImage{Pid: 1, Start: 2, Execs: 3}, Tid: 2, OwnTid: 3, Cpu: 4, UserSize: 24, KernelSize: 16, AttrsSize: 4,
		Comm: [16]uint8{'a', 'b'}, Carrier: uint8(programCarrierGOROUTINE_RECORD), Proven: 1, TraceFlags: 1,
	}
	for i, to := range []*uint64{&h.TraceId[0], &h.TraceId[1], &h.SpanId, &h.LocalRootSpanId} {
		*to = binary.NativeEndian.Uint64([]byte{byte(i), 1, 2, 3, 4, 5, 6, 7})
	}
	var s Sample
	at, err := s.decode(encodeEvent(t, h, data...))
	require.NoError(t, err)
	assert.Equal(t, uint64(5), at)
	assert.Equal(t, Sample{
		Image: Image{1, 2, 3}, TID: 2, OwnTID: 3, CPU: 4, Comm: "ab", User: []uint64{11, 12}, Kernel: []uint64{21, 22}, Goroutine: 6,
		Span: Span{
			TraceID: [16]byte{0, 1, 2, 3, 4, 5, 6, 7, 1, 1, 2, 3, 4, 5, 6, 7}, SpanID: [8]byte{2, 1, 2, 3, 4, 5, 6, 7},
			LocalRootSpanID: [8]byte{3, 1, 2, 3, 4, 5, 6, 7}, TraceFlags: 1, Attributes: "\x01\x02hi",
			Carrier: GoroutineRecord, Proven: true,
		},
	}, s)

	// decode reuses the memory of the stacks, and keeps nothing else of the previous sample.
	stack := &s.User[0]
	_, err = s.decode(encodeEvent(t, programHeader{UserSize: 8}, 9, 0, 0, 0, 0, 0, 0, 0))
	require.NoError(t, err)
	assert.Same(t, stack, &s.User[0])
	assert.Equal(t, Sample{User: []uint64{9}, Kernel: []uint64{}}, s)
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte{})
	f.Add(encodeEvent(f, programHeader{UserSize: 8, KernelSize: 8, AttrsSize: 1}, make([]byte, 17)...))
	f.Add(encodeEvent(f, programHeader{UserSize: 0xFFFF, AttrsSize: 0xFFFF, Carrier: 9}))
	f.Fuzz(func(t *testing.T, b []byte) {
		var s Sample
		if _, err := s.decode(b); err != nil {
			require.ErrorIs(t, err, errMalformed)
			return
		}
		n := headerSize + 8*(len(s.User)+len(s.Kernel))
		if s.Span.Exists() {
			n += len(s.Span.Attributes)
		}
		require.LessOrEqual(t, n, len(b))
	})
}
