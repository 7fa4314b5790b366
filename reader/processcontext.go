// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package reader

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	processcontextpb "go.opentelemetry.io/proto/otlp/processcontext/v1development"
	"google.golang.org/protobuf/proto"

	"github.com/otelctx/otelctx/internal/boottime"
	"github.com/otelctx/otelctx/internal/procfs"
	"github.com/otelctx/otelctx/internal/wire"
)

// ProcessContext is one complete publication of a process context. It owns its memory.
type ProcessContext struct {
	// MappingName is the name of the mapping in /proc/pid/maps, and MappingAddress its start in the
	// process.
	MappingName    string
	MappingAddress uint64
	// Version is the version of the format, always 2 today.
	Version uint32
	// PublishedAtNS distinguishes this publication from others of the process; it is the cache key
	// for [Process.Changed]. It is CLOCK_BOOTTIME in nanoseconds, or nanoseconds since the epoch
	// from publishers that follow OTEP 4719's first text.
	PublishedAtNS uint64
	// PayloadSize is the size of the encoded message in bytes.
	PayloadSize int
	// Message is the published message. Attributes with duplicate keys, which the OTEP forbids, are
	// preserved.
	Message *processcontextpb.ProcessContext

	// clockOffset is how far the publisher's CLOCK_BOOTTIME is ahead of the reader's.
	clockOffset time.Duration
}

// advertises reports whether the message says where spans are published.
func (c *ProcessContext) advertises() bool {
	return slices.ContainsFunc(c.message().GetAttributes(), func(kv *commonpb.KeyValue) bool {
		return strings.HasPrefix(kv.GetKey(), wire.ThreadLocalPrefix)
	})
}

// SchemaURL returns the schema URL of the resource, or "" if it is not published. otelctx publishes
// it in the attribute otelctx.resource.schema_url.
func (c *ProcessContext) SchemaURL() string {
	url := ""
	for _, kv := range c.Message.GetAttributes() {
		if kv.GetKey() == wire.AttributeSchemaURL {
			url = kv.GetValue().GetStringValue()
		}
	}
	return url
}

// Age returns how long ago the context was published. It supports both clocks that publishers use:
// a time decades after boot is time since the epoch. It takes into account that the publisher
// may be in another time namespace. It returns an error if the time lies in the future, as after
// a migration to another machine, or if the clock cannot be read.
func (c *ProcessContext) Age() (time.Duration, error) {
	now, err := boottime.Now()
	if err != nil {
		return 0, err
	}
	const year2000 = 946_684_800_000_000_000
	if c.PublishedAtNS >= year2000 {
		now = uint64(time.Now().UnixNano())
	} else {
		now += uint64(c.clockOffset)
	}
	if age := now - c.PublishedAtNS; c.PublishedAtNS <= now && age <= math.MaxInt64 {
		return time.Duration(age), nil
	}
	return 0, fmt.Errorf("published at %d ns, which lies ahead", c.PublishedAtNS)
}

// clockOffset returns how far the process's CLOCK_BOOTTIME is ahead of the reader's. The result
// is 0 if both are in the same time namespace, or if the offset is unknown.
func (p *Process) clockOffset() time.Duration {
	namespace := func(process, name string) string {
		target, err := os.Readlink(process + "/ns/" + name)
		if err != nil {
			return ""
		}
		return target
	}
	const own = "/proc/self"
	other := "/proc/" + strconv.Itoa(p.pid)
	current := namespace(other, "time")
	// The kernel reports the offsets of a process's children, which share its namespace unless it
	// called unshare.
	if current == "" || current == namespace(own, "time") || current != namespace(other, "time_for_children") {
		return 0
	}
	ownOffset, err := boottime.Offset(own)
	if err != nil {
		return 0
	}
	otherOffset, err := boottime.Offset(other)
	if err != nil {
		return 0
	}
	return otherOffset - ownOffset
}

// publication is a kind of message that a process publishes.
type publication int

const (
	// contextPublication is the process context.
	contextPublication publication = iota
	// advertisementPublication is the message that says where spans are published, if the
	// process context does not say it. It is in a separate mapping, or is one of several process
	// contexts.
	advertisementPublication
	publications
)

// mayHave reports whether a mapping with this name may hold the publication.
func (k publication) mayHave(name []byte) bool {
	return wire.IsProcessContextMapping(name) || k == advertisementPublication && wire.IsThreadLocalMapping(name)
}

// errSeveral means that a process has several process contexts. It is wrapped together with
// [ErrInvalid].
var errSeveral = errors.New("process contexts")

const (
	// maxAttempts bounds the attempts to read a context that keeps changing. The pauses between
	// them add up to 1.5 ms, and to some 10 ms if timers are coarse.
	maxAttempts  = 10
	firstBackoff = 3 * time.Microsecond

	// maxCandidates bounds the number of mappings with the right name that are examined. A process
	// should have one.
	maxCandidates = 16

	// maxMessageNesting bounds the nesting of messages in a payload. Each level of a value takes up
	// to three messages: map, entry and value. They are inside the process context, its resource,
	// an attribute and its value. One more level is for the innermost value, which may itself be a
	// list or a map.
	maxMessageNesting = 3*(wire.MaxValueNesting+1) + 4
)

// ProcessContext returns the context that the process publishes. While the context is being
// updated, it retries, up to a fixed number of times within about 10 ms.
//
// The error wraps [ErrNoContext], [ErrNotPermitted], [ErrProcessGone], [ErrInvalid] or [ErrBusy],
// or comes from ctx. Two valid contexts in one process are invalid, because nothing says which one is
// right.
func (p *Process) ProcessContext(ctx context.Context) (*ProcessContext, error) {
	return p.read(ctx, contextPublication)
}

// published returns the process context, or contextErr if there is none. advertisement is the
// message that says where spans are published: the process context itself, another message or
// nil. If there are several contexts, and one of them advertises spans, pc is nil. If none of
// them does, err is not nil.
func (p *Process) published(ctx context.Context) (pc, advertisement *ProcessContext, contextErr, err error) {
	pc, contextErr = p.read(ctx, contextPublication)
	several := errors.Is(contextErr, errSeveral)
	if contextErr != nil && !several && !errors.Is(contextErr, ErrNoContext) {
		return nil, nil, contextErr, contextErr
	}
	if pc.advertises() {
		return pc, pc, nil, nil
	}
	if errors.Is(contextErr, ErrNoContext) && !p.hasSeparate() {
		return nil, nil, contextErr, nil
	}
	advertisement, err = p.read(ctx, advertisementPublication)
	if errors.Is(err, ErrNoContext) {
		err = nil
		if several {
			err = contextErr
		}
	}
	return pc, advertisement, contextErr, err
}

// hasSeparate reports whether the last scan found a separate advertisement. It avoids a second
// scan of the mappings of processes that publish nothing, which are the majority.
func (p *Process) hasSeparate() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.separate
}

// read returns a complete publication.
func (p *Process) read(ctx context.Context, k publication) (*ProcessContext, error) {
	p.mu.Lock()
	defer p.mu.Unlock()

	backoff := firstBackoff
	for attempt := 1; ; attempt++ {
		if err := ctx.Err(); err != nil {
			return nil, p.error(err)
		}
		pc, err := p.readOnce(ctx, k, attempt == maxAttempts)
		if err == nil || !errors.Is(err, ErrBusy) || attempt == maxAttempts {
			return pc, err
		}
		time.Sleep(backoff)
		backoff *= 2
	}
}

// Changed reports whether [Process.ProcessContext] would return anything but the publication with
// this PublishedAtNS: a newer one, or an error because the context was withdrawn, is being updated
// or is no longer valid. Once the context has been found, Changed costs one system call.
//
// The error wraps [ErrProcessGone] or [ErrNotPermitted].
func (p *Process) Changed(publishedAtNS uint64) (bool, error) {
	return p.changed(contextPublication, publishedAtNS)
}

func (p *Process) changed(k publication, publishedAtNS uint64) (bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.found[k].Name == "" {
		// Nothing has been read yet, or the context was withdrawn.
		return true, p.checkAlive()
	}
	h, err := p.readHeader(p.found[k])
	if headerMissing(err) {
		return true, p.checkAlive()
	}
	if err != nil {
		return false, p.classify(err)
	}
	return h.PublishedAtNS == 0 || h.PublishedAtNS != publishedAtNS, nil
}

// readOnce reads a publication, and finds it first if necessary.
func (p *Process) readOnce(ctx context.Context, k publication, last bool) (*ProcessContext, error) {
	if p.found[k].Name == "" {
		if err := p.locate(ctx, k, last); err != nil {
			return nil, err
		}
	}
	pc, missing, err := p.readAt(p.found[k])
	if err == nil && k == advertisementPublication && !pc.advertises() {
		// This message no longer advertises spans. Retry, because another message may advertise
		// them now.
		pc, missing, err = nil, true, p.error(ErrBusy)
	}
	if missing {
		p.found[k] = procfs.Mapping{}
	}
	return pc, err
}

// readAt runs the reading protocol of OTEP 4719 once. missing reports that the mapping no longer
// holds a header.
func (p *Process) readAt(m procfs.Mapping) (_ *ProcessContext, missing bool, err error) {
	before, err := p.readHeader(m)
	if err != nil {
		return nil, true, p.headerError(err)
	}
	if before.PublishedAtNS == 0 {
		return nil, false, p.error(ErrBusy)
	}

	// A concurrent update can make a valid payload look invalid. So report the payload's error
	// only if the whole header is unchanged afterwards. All of it is compared, because its
	// fields are not read in one instant.
	payload, payloadErr := p.readPayload(&before)
	after, err := p.readHeader(m)
	if err != nil {
		return nil, true, p.headerError(err)
	}
	if after != before {
		return nil, false, p.error(ErrBusy)
	}
	// Memory is read by pid. If the process is still alive now, the pid referred to it during
	// the whole read.
	if err := p.checkAlive(); err != nil {
		return nil, false, err
	}
	if payloadErr != nil {
		return nil, false, p.classify(payloadErr)
	}
	msg, err := decodePayload(payload)
	if err != nil {
		return nil, false, p.error(fmt.Errorf("%w: %w", ErrInvalid, err))
	}
	return &ProcessContext{
		MappingName:    m.Name,
		MappingAddress: m.Start,
		Version:        before.Version,
		PublishedAtNS:  before.PublishedAtNS,
		PayloadSize:    len(payload),
		Message:        msg,
		clockOffset:    p.clockOffset(),
	}, false, nil
}

// headerError returns the error for a header that was found before but cannot be read now.
func (p *Process) headerError(err error) error {
	if headerMissing(err) {
		// The context was withdrawn or replaced. The next search finds out which.
		return p.error(fmt.Errorf("%w: %w", ErrBusy, err))
	}
	return p.classify(err)
}

// headerMissing reports whether an error of readHeader says that the memory is unmapped or holds
// something else.
func headerMissing(err error) bool {
	return errors.Is(err, syscall.EFAULT) || errors.Is(err, wire.ErrProcessContextHeader)
}

func (p *Process) readHeader(m procfs.Mapping) (wire.ProcessContextHeader, error) {
	var b [wire.ProcessContextHeaderSize]byte
	if _, err := p.target.ReadAt(b[:], int64(m.Start)); err != nil {
		return wire.ProcessContextHeader{}, err
	}
	return wire.DecodeProcessContextHeader(&b)
}

func (p *Process) readPayload(h *wire.ProcessContextHeader) ([]byte, error) {
	if err := h.ValidatePayload(); err != nil {
		return nil, err
	}
	payload := make([]byte, h.PayloadSize)
	if _, err := p.target.ReadAt(payload, int64(h.Payload)); err != nil {
		return nil, fmt.Errorf("payload: %w", err)
	}
	return payload, nil
}

func decodePayload(payload []byte) (*processcontextpb.ProcessContext, error) {
	msg := new(processcontextpb.ProcessContext)
	opts := proto.UnmarshalOptions{RecursionLimit: maxMessageNesting}
	if err := opts.Unmarshal(payload, msg); err != nil {
		return nil, fmt.Errorf("payload: %w", err)
	}
	return msg, nil
}

// locate sets p.found to the only mapping that holds a publication. last says that this is the
// last attempt. An unreadable mapping, such as that of a truncated file, then counts as invalid
// instead of withdrawn.
func (p *Process) locate(ctx context.Context, k publication, last bool) error {
	candidates, err := p.candidates(ctx, k)
	if err != nil {
		return err
	}
	var (
		found, separate []procfs.Mapping
		changing        bool
		rejections      error
	)
	for _, m := range candidates {
		h, err := p.readHeader(m)
		switch {
		case errors.Is(err, syscall.EFAULT) && !last, errors.Is(err, wire.ErrProcessContextUnsigned):
			// The context was just withdrawn, or is being published.
			changing = true
		case errors.Is(err, syscall.EFAULT), errors.Is(err, wire.ErrProcessContextHeader):
			// The name may contain anything, terminal control sequences included.
			err = fmt.Errorf("%q: %w", m.Name, err)
			if rejections != nil {
				err = fmt.Errorf("%w; %w", rejections, err)
			}
			rejections = err
		case err != nil:
			return p.classify(err)
		case h.PublishedAtNS == 0:
			changing = true
		case k == contextPublication:
			found = append(found, m)
		default:
			pc, _, err := p.readAt(m)
			switch {
			case errors.Is(err, ErrBusy):
				changing = true
			case err != nil && !errors.Is(err, ErrInvalid):
				return err
			case err != nil || !pc.advertises():
			case wire.IsThreadLocalMapping([]byte(m.Name)):
				separate = append(separate, m)
			default:
				found = append(found, m)
			}
		}
	}
	if k == advertisementPublication {
		// Ignore invalid mappings with the right name.
		rejections = nil
	}
	if len(found) == 0 {
		// A separate advertisement counts only if no process context advertises spans. While a
		// publisher starts or shuts down, both exist with the same content.
		found = separate
	}
	var invalid error
	switch {
	case len(found) == 1:
		p.found[k] = found[0]
		return nil
	case len(found) > 1:
		invalid = fmt.Errorf("%w: %d %w", ErrInvalid, len(found), errSeveral)
	case changing:
		return p.error(ErrBusy)
	case rejections != nil:
		invalid = fmt.Errorf("%w: %w", ErrInvalid, rejections)
	default:
		return p.error(ErrNoContext)
	}
	// The mapping may have been unmapped before it was read, and the address may hold something
	// else now. Report a mapping as invalid only if it still has the name.
	again, err := p.candidates(ctx, k)
	if err != nil {
		return err
	}
	if !slices.Equal(again, candidates) {
		return p.error(ErrBusy)
	}
	return p.error(invalid)
}

// candidates returns the mappings whose name may be that of a publication.
func (p *Process) candidates(ctx context.Context, k publication) ([]procfs.Mapping, error) {
	var (
		candidates []procfs.Mapping
		lines      int
	)
	p.separate = false
	keep := func(name []byte) bool {
		lines++
		p.separate = p.separate || wire.IsThreadLocalMapping(name)
		// Check ctx every few thousand lines: the maps of a hostile process may have millions.
		return k.mayHave(name) || lines%4096 == 0 && ctx.Err() != nil
	}
	for m, err := range p.target.Maps(keep) {
		if ctx.Err() != nil {
			return nil, p.error(ctx.Err())
		}
		if err != nil {
			return nil, p.classify(err)
		}
		if !m.Perms.Read || m.Perms.Exec || m.End-m.Start < wire.ProcessContextHeaderSize {
			continue
		}
		if len(candidates) == maxCandidates {
			return nil, p.error(fmt.Errorf("%w: more than %d mappings with the name", ErrInvalid, maxCandidates))
		}
		candidates = append(candidates, m)
	}
	return candidates, nil
}

func (p *Process) checkAlive() error {
	if err := p.target.Alive(); err != nil {
		return p.classify(err)
	}
	return nil
}

// confirm returns nil if everything read through v came from the program that published v. It
// checks that the process is alive and still has the publication that v depends on. If the
// process has executed another program meanwhile, that publication is gone.
func (p *Process) confirm(v *threadView) error {
	if published, k := v.source(); published != nil {
		changed, err := p.changed(k, published.PublishedAtNS)
		if err != nil {
			return err
		}
		if changed {
			return p.error(ErrBusy)
		}
	}
	// Memory is read by pid. If the process is still alive now, the pid referred to it during the
	// whole read.
	return p.checkAlive()
}
