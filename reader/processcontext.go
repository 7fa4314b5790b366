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

// ProcessContext is one publication of a process context, read whole. It owns its
// memory.
type ProcessContext struct {
	// MappingName is the name of the mapping as the kernel shows it, and
	// MappingAddress where it starts in the process.
	MappingName    string
	MappingAddress uint64
	// Version is the version of the format, always 2 today.
	Version uint32
	// PublishedAtNS tells this publication from others of the process: the cache
	// key for [Process.Changed]. It is CLOCK_BOOTTIME in nanoseconds, or from
	// publishers written to OTEP 4719's first text, nanoseconds since the epoch.
	PublishedAtNS uint64
	// PayloadSize is the size of the encoded message in bytes.
	PayloadSize int
	// Message is what was published. Attributes whose keys are not unique, which
	// the OTEP forbids, are kept as they came.
	Message *processcontextpb.ProcessContext

	// ahead is how far the publisher's CLOCK_BOOTTIME is ahead of the reader's.
	ahead time.Duration
}

// advertises reports whether the message says where spans are.
func (c *ProcessContext) advertises() bool {
	return slices.ContainsFunc(c.message().GetAttributes(), func(kv *commonpb.KeyValue) bool {
		return strings.HasPrefix(kv.GetKey(), wire.ThreadLocalPrefix)
	})
}

// SchemaURL returns the schema URL of the resource if the publisher gave one, as
// otelctx does in the attribute otelctx.resource.schema_url, or "".
func (c *ProcessContext) SchemaURL() string {
	url := ""
	for _, kv := range c.Message.GetAttributes() {
		if kv.GetKey() == wire.AttributeSchemaURL {
			url = kv.GetValue().GetStringValue()
		}
	}
	return url
}

// Age returns how long ago the context was published. It understands both clocks
// that publishers use: what would be decades since boot is time since the epoch.
// A publisher in another time namespace has its own time since boot, which Age makes up for.
// The error says that the time lies ahead, as after a move to another machine, or that
// the clock cannot be read.
func (c *ProcessContext) Age() (time.Duration, error) {
	now, err := boottime.Now()
	if err != nil {
		return 0, err
	}
	const year2000 = 946_684_800_000_000_000
	if c.PublishedAtNS >= year2000 {
		now = uint64(time.Now().UnixNano())
	} else {
		now += uint64(c.ahead)
	}
	if age := now - c.PublishedAtNS; c.PublishedAtNS <= now && age <= math.MaxInt64 {
		return time.Duration(age), nil
	}
	return 0, fmt.Errorf("published at %d ns, which lies ahead", c.PublishedAtNS)
}

// clockAhead returns how far the process's CLOCK_BOOTTIME is ahead of this one's: 0 unless they are in different
// time namespaces, or if that is not known.
func (p *Process) clockAhead() time.Duration {
	namespace := func(process, name string) string {
		target, err := os.Readlink(process + "/ns/" + name)
		if err != nil {
			return ""
		}
		return target
	}
	const own = "/proc/self"
	other := "/proc/" + strconv.Itoa(p.pid)
	at := namespace(other, "time")
	// The offsets are those of a process's children, which are in the same namespace but after unshare.
	if at == "" || at == namespace(own, "time") || at != namespace(other, "time_for_children") {
		return 0
	}
	ours, err := boottime.Offset(own)
	if err != nil {
		return 0
	}
	theirs, err := boottime.Offset(other)
	if err != nil {
		return 0
	}
	return theirs - ours
}

// publication is what is looked for in a process.
type publication int

const (
	// theContext is the process context.
	theContext publication = iota
	// theAdvertisement is the message that says where spans are, if the process context
	// does not. It is in a mapping of its own, or in one of several process contexts.
	theAdvertisement
	publications
)

// mayHave reports whether a mapping with this name can have the publication.
func (k publication) mayHave(name []byte) bool {
	return wire.IsProcessContextMapping(name) || k == theAdvertisement && wire.IsThreadLocalMapping(name)
}

// errSeveral says that a process has several process contexts. It is wrapped together with
// [ErrInvalid].
var errSeveral = errors.New("of them")

const (
	// maxAttempts bounds how often a read is tried while the context changes
	// underneath. The pauses between them add up to 1.5 ms, and to some 10 ms where
	// timers are coarse.
	maxAttempts  = 10
	firstBackoff = 3 * time.Microsecond

	// maxCandidates bounds how many mappings with the right name are looked at.
	// A process should have one.
	maxCandidates = 16

	// maxMessageNesting bounds how deep messages nest in a payload. Each level of a
	// value takes up to three: map, entry and value. Around them are the process
	// context, its resource, an attribute and its value. One level more is that of the
	// innermost value, which may be a list or a map too.
	maxMessageNesting = 3*(wire.MaxValueNesting+1) + 4
)

// ProcessContext returns the whole context that the process publishes. It retries a
// context that is being updated meanwhile, a bounded number of times within about 10
// ms.
//
// The error wraps [ErrNoContext], [ErrNotPermitted], [ErrProcessGone], [ErrInvalid] or
// [ErrBusy], or is ctx's. Two valid contexts in one process are invalid, because
// nothing tells which one to believe.
func (p *Process) ProcessContext(ctx context.Context) (*ProcessContext, error) {
	return p.read(ctx, theContext)
}

// published returns the process context, or why there is none, and the message that says
// where spans are, which may be the same or nil. Several contexts are as good as none if one
// of them says where spans are, and else an error.
func (p *Process) published(ctx context.Context) (pc, advertisement *ProcessContext, contextErr, err error) {
	pc, contextErr = p.read(ctx, theContext)
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
	advertisement, err = p.read(ctx, theAdvertisement)
	if errors.Is(err, ErrNoContext) {
		err = nil
		if several {
			err = contextErr
		}
	}
	return pc, advertisement, contextErr, err
}

// hasSeparate spares processes that publish nothing, which are most, a second look at their
// mappings.
func (p *Process) hasSeparate() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.separate
}

// read returns a publication, whole.
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

// Changed reports whether [Process.ProcessContext] would return anything else than the
// publication with this PublishedAtNS. That is a newer one, or an error because the
// context is gone, busy or no longer valid. It costs one system call once the context
// has been found.
//
// The error wraps [ErrProcessGone] or [ErrNotPermitted].
func (p *Process) Changed(publishedAtNS uint64) (bool, error) {
	return p.changed(theContext, publishedAtNS)
}

func (p *Process) changed(k publication, publishedAtNS uint64) (bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.found[k].Name == "" {
		// Nothing has been read yet, or it went away.
		return true, p.checkAlive()
	}
	h, err := p.readHeader(p.found[k])
	if notThere(err) {
		return true, p.checkAlive()
	}
	if err != nil {
		return false, p.classify(err)
	}
	return h.PublishedAtNS == 0 || h.PublishedAtNS != publishedAtNS, nil
}

// readOnce finds a publication, if that has not been done, and reads it.
func (p *Process) readOnce(ctx context.Context, k publication, last bool) (*ProcessContext, error) {
	if p.found[k].Name == "" {
		if err := p.locate(ctx, k, last); err != nil {
			return nil, err
		}
	}
	pc, lost, err := p.readAt(p.found[k])
	if err == nil && k == theAdvertisement && !pc.advertises() {
		// It is a context that did so before: another message may do so now.
		pc, lost, err = nil, true, p.error(ErrBusy)
	}
	if lost {
		p.found[k] = procfs.Mapping{}
	}
	return pc, err
}

// readAt is one pass through the reading protocol of OTEP 4719. lost says that there is no
// header any more.
func (p *Process) readAt(at procfs.Mapping) (_ *ProcessContext, lost bool, err error) {
	before, err := p.readHeader(at)
	if err != nil {
		return nil, true, p.lost(err)
	}
	if before.PublishedAtNS == 0 {
		return nil, false, p.error(ErrBusy)
	}

	// What is wrong with the payload may be an update's doing. Judge it only when all
	// of the header is seen to be the same as before: its fields are not read in one
	// instant.
	payload, payloadErr := p.readPayload(&before)
	after, err := p.readHeader(at)
	if err != nil {
		return nil, true, p.lost(err)
	}
	if after != before {
		return nil, false, p.error(ErrBusy)
	}
	// Memory is read by the id: as long as the process lives it was this one's.
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
		MappingName:    at.Name,
		MappingAddress: at.Start,
		Version:        before.Version,
		PublishedAtNS:  before.PublishedAtNS,
		PayloadSize:    len(payload),
		Message:        msg,
		ahead:          p.clockAhead(),
	}, false, nil
}

// lost returns the error for a header that was found once and now cannot be read.
func (p *Process) lost(err error) error {
	if notThere(err) {
		// Withdrawn or replaced: looking for it again will tell.
		return p.error(fmt.Errorf("%w: %w", ErrBusy, err))
	}
	return p.classify(err)
}

// notThere reports whether the error of readHeader says that the memory is not
// mapped or holds something else.
func notThere(err error) bool {
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

// locate sets p.found to the one mapping that has a publication. last says that a mapping which
// cannot be read, as one of a truncated file, has had the time to go away.
func (p *Process) locate(ctx context.Context, k publication, last bool) error {
	candidates, err := p.candidates(ctx, k)
	if err != nil {
		return err
	}
	var (
		found, apart []procfs.Mapping
		changing     bool
		rejections   error
	)
	for _, m := range candidates {
		h, err := p.readHeader(m)
		switch {
		case errors.Is(err, syscall.EFAULT) && !last, errors.Is(err, wire.ErrProcessContextUnsigned):
			// Just withdrawn, or just being published.
			changing = true
		case errors.Is(err, syscall.EFAULT), errors.Is(err, wire.ErrProcessContextHeader):
			// The name may be made of anything, terminal control sequences included.
			err = fmt.Errorf("%q: %w", m.Name, err)
			if rejections != nil {
				err = fmt.Errorf("%w; %w", rejections, err)
			}
			rejections = err
		case err != nil:
			return p.classify(err)
		case h.PublishedAtNS == 0:
			changing = true
		case k == theContext:
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
				apart = append(apart, m)
			default:
				found = append(found, m)
			}
		}
	}
	if k == theAdvertisement {
		// A mapping that has the name but is invalid does not end the search.
		rejections = nil
	}
	if len(found) == 0 {
		// There are both while a publisher comes up or shuts down. They say the same.
		found = apart
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
	// The mapping may have been unmapped before it was looked at, and the address may hold
	// something else by now. Only a mapping that still has the name is invalid.
	again, err := p.candidates(ctx, k)
	if err != nil {
		return err
	}
	if !slices.Equal(again, candidates) {
		return p.error(ErrBusy)
	}
	return p.error(invalid)
}

// candidates returns the mappings that have a name for a publication.
func (p *Process) candidates(ctx context.Context, k publication) ([]procfs.Mapping, error) {
	var (
		candidates []procfs.Mapping
		lines      int
	)
	p.separate = false
	keep := func(name []byte) bool {
		lines++
		p.separate = p.separate || wire.IsThreadLocalMapping(name)
		// Ask ctx now and then: hostile maps run to millions of lines.
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
			return nil, p.error(fmt.Errorf("%w: more than %d mappings of the name", ErrInvalid, maxCandidates))
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
