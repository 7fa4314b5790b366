// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package export

import (
	"bufio"
	"cmp"
	"io"
	"os"
	"slices"

	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile"
)

// otlpEncoder writes one ProfilesData message in parts. This works because protobuf decodes concatenated messages as
// one message that has the elements of all of them. Each part adds entries to the dictionary's tables.
type otlpEncoder struct {
	to     io.Writer
	tables profile.Tables
}

func (e *otlpEncoder) add(data *profilespb.ProfilesData) error {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(e.tables.Append(data))
	if err != nil {
		return err
	}
	_, err = e.to.Write(b)
	return err
}

func (*otlpEncoder) close() error { return nil }

// jsonEncoder writes one ProfilesData message in OTLP's JSON encoding. In a JSON object each field occurs only once,
// so the tables of the dictionary must be written as a whole, after the last part. Until then their entries are kept
// in files, so that only the current part is in memory.
type jsonEncoder struct {
	to     jsonWriter
	tables profile.Tables
	begun  bool
	// waiting holds the tables of the dictionary, sorted by name.
	waiting []*waitingTable
}

// waitingTable is a table whose encoded entries are kept in a file, separated by commas.
type waitingTable struct {
	field protoreflect.FieldDescriptor
	file  *os.File
	to    jsonWriter
	begun bool
}

func newJSONEncoder(to *bufio.Writer, spool func() (*os.File, error)) (*jsonEncoder, error) {
	e := &jsonEncoder{to: jsonWriter{to}}
	fields := (&profilespb.ProfilesDictionary{}).ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		file, err := spool()
		if err != nil {
			return nil, err
		}
		e.waiting = append(e.waiting, &waitingTable{field: fields.Get(i), file: file, to: jsonWriter{bufio.NewWriter(file)}})
	}
	slices.SortFunc(e.waiting, func(a, b *waitingTable) int { return cmp.Compare(a.field.JSONName(), b.field.JSONName()) })
	return e, nil
}

func (e *jsonEncoder) add(data *profilespb.ProfilesData) error {
	message := e.tables.Append(data)
	for _, r := range message.GetResourceProfiles() {
		separator := ","
		if !e.begun {
			separator, e.begun = `{"resourceProfiles":[`, true
		}
		e.to.text(separator)
		e.to.message(r)
	}
	dictionary := message.GetDictionary().ProtoReflect()
	var err error
	for _, t := range e.waiting {
		entries := dictionary.Get(t.field).List()
		t.to.elements(t.field, entries, t.begun)
		t.begun = t.begun || entries.Len() > 0
		err = cmp.Or(err, t.to.failure())
	}
	return cmp.Or(err, e.to.failure())
}

func (e *jsonEncoder) close() error {
	if !e.begun {
		e.to.text(`{"resourceProfiles":[`)
	}
	separator := `],"dictionary":{`
	for _, t := range e.waiting {
		if t.begun {
			e.to.text(separator + `"` + t.field.JSONName() + `":[`)
			separator = ","
			if err := t.copyTo(e.to); err != nil {
				return err
			}
			e.to.text("]")
		}
	}
	if separator != "," {
		e.to.text(separator)
	}
	e.to.text("}}\n")
	return nil
}

// copyTo copies the entries to w.
func (t *waitingTable) copyTo(w io.Writer) error {
	if err := t.to.Flush(); err != nil {
		return err
	}
	if _, err := t.file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	_, err := io.Copy(w, t.file)
	return err
}

// linesEncoder writes one ProfilesData message per line.
type linesEncoder struct{ to jsonWriter }

func (e *linesEncoder) add(data *profilespb.ProfilesData) error {
	e.to.message(data)
	e.to.text("\n")
	return e.to.failure()
}

func (*linesEncoder) close() error { return nil }
