// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package reader

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"syscall"
	"time"

	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	processcontextpb "go.opentelemetry.io/proto/otlp/processcontext/v1development"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	"google.golang.org/protobuf/proto"

	"github.com/otelctx/otelctx/internal/boottime"
	"github.com/otelctx/otelctx/internal/procfs"
	"github.com/otelctx/otelctx/internal/wire"
)

// ProcessContext is a copy of one publication of a process context.
type ProcessContext struct {
	// MappingName is the name of the mapping in /proc/pid/maps. MappingAddress is the address of
	// its start in the process.
	MappingName    string
	MappingAddress uint64
	// Version is the version of the format. It is always 2.
	Version uint32
	// PublishedAtNS is the CLOCK_BOOTTIME of the publication in nanoseconds. Publishers that follow
	// the first version of OTEP 4719 use nanoseconds since the Unix epoch instead. The value
	// identifies the publication among those of the process: pass it to [Process.Changed].
	PublishedAtNS uint64
	// Resource is the process's resource, and Attributes are published alongside it. Either may
	// have several attributes with the same key, although the OTEP forbids that.
	Resource   *resourcepb.Resource
	Attributes []*commonpb.KeyValue
	// Payload is the encoded message, from which Resource and Attributes were decoded. Its protobuf
	// type is opentelemetry.proto.processcontext.v1development.ProcessContext, which may change.
	Payload []byte

	// clockOffset is the CLOCK_BOOTTIME of the publisher minus that of the reader.
	clockOffset time.Duration
}

// attributes returns the attributes outside of the resource. There are none if c is nil.
func (c *ProcessContext) attributes() []*commonpb.KeyValue {
	if c == nil {
		return nil
	}
	return c.Attributes
}

// advertises reports whether the message says where spans are published.
func (c *ProcessContext) advertises() bool {
	return slices.ContainsFunc(c.attributes(), func(kv *commonpb.KeyValue) bool {
		return strings.HasPrefix(kv.GetKey(), wire.ThreadLocalPrefix)
	})
}

// SchemaURL returns the schema URL of the resource, or "" if it is not published. otelctx publishes
// it in the attribute otelctx.resource.schema_url.
func (c *ProcessContext) SchemaURL() string {
	url := ""
	for _, kv := range c.Attributes {
		if kv.GetKey() == wire.AttributeSchemaURL {
			url = kv.GetValue().GetStringValue()
		}
	}
	return url
}

// Age returns how long ago the context was published. It supports both clocks that publishers use:
// it treats values from the year 2000 onwards as Unix time. It also supports publishers in another
// time namespace. Age returns an error if the time of publication is in the future, for example
// because the process has been migrated to another machine, or if the clock cannot be read.
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

// publication is a kind of message that a process can publish.
type publication int

const (
	// contextPublication is the process context.
	contextPublication publication = iota
	// advertisementPublication is the message that advertises where spans are published, if
	// [Process.ProcessContext] does not return it. It is in a separate mapping, or it is one of
	// several process contexts.
	advertisementPublication
	publications
)

// mayHave reports whether a mapping with this name may contain a publication of kind k.
func (k publication) mayHave(name []byte) bool {
	return wire.IsProcessContextMapping(name) || k == advertisementPublication && wire.IsThreadLocalMapping(name)
}

// errSeveral means that the process has several process contexts. Errors that wrap it also wrap
// [ErrInvalid].
var errSeveral = errors.New("process contexts")

const (
	// maxAttempts is the maximum number of attempts to read a context that keeps changing. The
	// pauses between them add up to 1.5 ms, or to about 10 ms if timers are coarse.
	maxAttempts  = 10
	firstBackoff = 3 * time.Microsecond

	// maxCandidates is the maximum number of mappings with the right name that a process may have.
	// It should have one.
	maxCandidates = 16

	// maxMessageNesting is the maximum depth of protobuf messages in a payload. Each level of
	// nesting in a value takes up to three messages: a map, an entry and its value. One level is
	// added because the innermost value may itself be a list or a map. Four messages enclose the
	// nested value: the process context, its resource, an attribute and its value.
	maxMessageNesting = 3*(wire.MaxValueNesting+1) + 4
)

// ProcessContext returns the context that the process publishes. If the context is being updated,
// it retries for at most about 10 ms.
//
// The error wraps [ErrNoContext], [ErrNotPermitted], [ErrProcessGone], [ErrInvalid] or [ErrBusy],
// or comes from ctx. If the process has several contexts, the error wraps [ErrInvalid], because
// nothing says which of them is right.
func (p *Process) ProcessContext(ctx context.Context) (*ProcessContext, error) {
	return p.read(ctx, contextPublication)
}

// published returns the process context and the message that advertises where spans are published.
// These may be the same message, and either may be nil. contextErr is the reason why pc is nil. If
// the process has several contexts, pc is nil, and err is not nil unless one of them, or a separate
// message, advertises spans.
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

// hasSeparate reports whether the last scan found a mapping with the name of a separate
// advertisement. Most processes publish nothing; for them hasSeparate avoids a second scan of all
// mappings.
func (p *Process) hasSeparate() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.separate
}

// read returns the publication of kind k. It retries while the publication is being updated.
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

// Changed reports whether the process context is no longer the publication with this PublishedAtNS:
// the process has published a newer one, is updating it, has withdrawn it, or has made it invalid.
// Changed also returns true if [Process.ProcessContext] has not found a context yet. Once it has,
// Changed costs one system call.
//
// The error wraps [ErrProcessGone] or [ErrNotPermitted].
func (p *Process) Changed(publishedAtNS uint64) (bool, error) {
	return p.changed(contextPublication, publishedAtNS)
}

func (p *Process) changed(k publication, publishedAtNS uint64) (bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.found[k].Name == "" {
		// No context has been found yet, or it was withdrawn.
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

// readOnce reads the publication of kind k, after locating it if necessary. last says that this is
// the last attempt.
func (p *Process) readOnce(ctx context.Context, k publication, last bool) (*ProcessContext, error) {
	if p.found[k].Name == "" {
		if err := p.locate(ctx, k, last); err != nil {
			return nil, err
		}
	}
	pc, missing, err := p.readAt(p.found[k])
	if err == nil && k == advertisementPublication && !pc.advertises() {
		// This message no longer advertises spans, but another one may do so now. So search again.
		pc, missing, err = nil, true, p.error(ErrBusy)
	}
	if missing {
		p.found[k] = procfs.Mapping{}
	}
	return pc, err
}

// readAt reads the publication in m, according to the reading protocol of OTEP 4719. missing says
// that the mapping no longer contains a readable header.
func (p *Process) readAt(m procfs.Mapping) (_ *ProcessContext, missing bool, err error) {
	before, err := p.readHeader(m)
	if err != nil {
		return nil, true, p.headerError(err)
	}
	if before.PublishedAtNS == 0 {
		return nil, false, p.error(ErrBusy)
	}

	// During an update a valid payload can look invalid. So report an error of the payload only if
	// the header is unchanged afterwards. Compare the whole header, because its fields may have
	// been read at different moments.
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
	clockOffset, err := boottime.Ahead(procfs.Host().Path(p.pid, ""))
	if err != nil {
		clockOffset = 0 // Assume the same time namespace.
	}
	return &ProcessContext{
		MappingName:    m.Name,
		MappingAddress: m.Start,
		Version:        before.Version,
		PublishedAtNS:  before.PublishedAtNS,
		Resource:       msg.GetResource(),
		Attributes:     msg.GetAttributes(),
		Payload:        payload,
		clockOffset:    clockOffset,
	}, false, nil
}

// headerError returns the error for a header that cannot be read although locate found it.
func (p *Process) headerError(err error) error {
	if headerMissing(err) {
		// The context was withdrawn or replaced. The next search finds out which.
		return p.error(fmt.Errorf("%w: %w", ErrBusy, err))
	}
	return p.classify(err)
}

// headerMissing reports whether err, an error of readHeader, means that there is no header: the
// memory is unmapped or contains something else.
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

// locate sets p.found[k] to the only mapping that contains a publication of kind k. last says that
// this is the last attempt. At earlier attempts, an unreadable mapping counts as just withdrawn. At
// the last it counts as invalid, because it may be, for example, a mapping of a truncated file.
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
			// The context has just been withdrawn, or is being published.
			changing = true
		case errors.Is(err, syscall.EFAULT), errors.Is(err, wire.ErrProcessContextHeader):
			// Quote the name, because it may contain anything, even terminal control sequences.
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
		// An invalid mapping must not hide the advertisement in another.
		rejections = nil
	}
	if len(found) == 0 {
		// Use a separate advertisement only if no process context advertises spans. While a
		// publisher starts or shuts down, both may exist, with the same content.
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
	// A mapping may have been replaced by another before it was read. So report it as invalid only
	// if the same mappings still have the right name.
	again, err := p.candidates(ctx, k)
	if err != nil {
		return err
	}
	if !slices.Equal(again, candidates) {
		return p.error(ErrBusy)
	}
	return p.error(invalid)
}

// candidates returns the mappings whose names allow a publication of kind k.
func (p *Process) candidates(ctx context.Context, k publication) ([]procfs.Mapping, error) {
	var candidates []procfs.Mapping
	p.separate = false
	keep := func(name []byte) bool {
		p.separate = p.separate || wire.IsThreadLocalMapping(name)
		return k.mayHave(name)
	}
	for m, err := range p.mappings(ctx, keep) {
		if err != nil {
			return nil, err
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

// confirm returns an error unless everything that was read through v came from the program that v
// describes. It checks that the process is alive and that the publication from which v was made
// still exists. If the process has executed another program, the publication is gone.
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
