// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package reader

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/otelctx/otelctx/internal/remotemem"
	"github.com/otelctx/otelctx/internal/wire"
)

// Limits for the layout of an advertised request table. Together they bound how much is read for each call of
// [Process.Requests].
const (
	maxRequestRow  = 1 << 15
	maxRequestRows = 1 << 8
)

// requestTable returns the advertised request table. The error is the reason why there is none.
func (a advertisement) requestTable() (*Table, error) {
	return a.table(wire.KeyRequests, tableBounds{wire.RequestsLayout1, wire.TableKeyEntrySize, wire.RequestCounterSize, maxRequestRow, maxRequestRows})
}

// errNoRequestTable means that there is no request table at the advertised address.
var errNoRequestTable = errors.New("not a request table")

// Requests returns how many requests to each endpoint have ended since the process began to publish spans, by the
// number of the endpoint's name, for the first names. t is [ThreadLayout.Requests], and [Process.Names] returns the
// names. A request is a span without a parent in the process. It counts under the name with which it was published
// last.
//
// The numbers are exact for requests that ended before the call. Requests of unsampled spans count if these are
// published.
//
// The error wraps [ErrNotPermitted], [ErrProcessGone] or [ErrInvalid], or says that the table no longer exists.
func (p *Process) Requests(t *Table, names int) ([]uint64, error) {
	counts, err := readRequests(t, p.threads.source, names)
	if err != nil {
		return nil, p.classify(err)
	}
	// Memory is read by pid: see Names.
	if err := p.checkAlive(); err != nil {
		return nil, err
	}
	return counts, nil
}

// readRequests is [Process.Requests] for any memory.
func readRequests(t *Table, memory remotemem.Reader, names int) ([]uint64, error) {
	used, err := t.used(memory, wire.RequestsMagic, errNoRequestTable)
	if err != nil {
		return nil, fmt.Errorf("request table: %w", err)
	}
	const most = 1 << 16 // bytes that are read at once
	counts := make([]uint64, max(min(names, t.EntrySize/wire.RequestCounterSize), 0))
	size := len(counts) * wire.RequestCounterSize
	if size == 0 {
		return counts, nil
	}
	batch := min(used, most/size)
	data, parts := make([]byte, batch*size), make([]remotemem.Part, 0, batch)
	for row := 0; row < used; row += len(parts) {
		parts = parts[:0]
		for i := range min(batch, used-row) {
			address := t.Address + uint64(t.HeaderSize) + uint64((row+i)*t.EntrySize)
			parts = append(parts, remotemem.Part{Address: address, Data: data[i*size : (i+1)*size]})
		}
		if _, err := memory.ReadParts(parts); err != nil {
			return nil, fmt.Errorf("request table: %w", err)
		}
		for _, part := range parts {
			for i := range counts {
				counts[i] += binary.NativeEndian.Uint64(part.Data[i*wire.RequestCounterSize:])
			}
		}
	}
	return counts, nil
}
