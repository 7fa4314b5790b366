// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	processcontextpb "go.opentelemetry.io/proto/otlp/processcontext/v1development"
	"google.golang.org/protobuf/proto"

	"github.com/otelctx/otelctx/internal/boottime"
	"github.com/otelctx/otelctx/internal/procfs"
	"github.com/otelctx/otelctx/internal/remotemem"
	"github.com/otelctx/otelctx/internal/wire"
)

const (
	// interval is the time between two reads of the header. An update takes only microseconds, so most
	// reads see the header before or after an update, not during it.
	interval = 200 * time.Microsecond
	// scanInterval is the time between two scans of the mappings, children and threads.
	scanInterval = time.Second
	// stuckAfter is how long an update may take before the publisher counts as stuck. Even a publisher that
	// loses the CPU during an update needs far less.
	stuckAfter  = 5 * time.Second
	maxChildren = 1024     // maximum number of children examined
	maxPayload  = 16 << 20 // bytes; the limits of readers are far lower
	maxSmaps    = 64 << 20 // bytes
)

// contextChecker checks the process context of one process.
type contextChecker struct {
	report
	pid     int
	memory  remotemem.Memory
	process *procfs.Process

	mapping     procfs.Mapping // the mapping with the header, or the zero value if it is unknown
	lastAddress uint64         // of a header that can no longer be read; 0 after the next scan
	found       bool           // whether a header was ever found
	zero        time.Time      // when the timestamp was first seen to be zero; unset if it is not zero
	last        *observedPublication
	updates     int
	message     *processcontextpb.ProcessContext
	keys        []string
	naming      *namingCounter
}

// observedPublication is a publication that was read, kept to compare it with the next one.
type observedPublication struct {
	header wire.ProcessContextHeader
	digest [sha256.Size]byte
}

// step reads the header, the payload and the header again, and checks what it has read.
func (c *contextChecker) step() {
	if c.mapping.Name == "" {
		return
	}
	var before, after [wire.ProcessContextHeaderSize]byte
	if _, err := c.memory.ReadAt(before[:], int64(c.mapping.Start)); err != nil {
		// The context was withdrawn or moved. The next scan, which follows at once, finds a moved context.
		c.mapping, c.lastAddress = procfs.Mapping{}, c.mapping.Start
		return
	}
	h := decode(before)
	if h.PublishedAtNS == 0 {
		if c.zero.IsZero() {
			c.zero = time.Now()
		}
		if took := time.Since(c.zero); took > stuckAfter {
			c.check("4719-H3", false, "the timestamp has been zero for %v; header % x", took.Round(time.Second), before)
			c.zero = time.Now()
		}
		return
	}
	c.zero = time.Time{}
	body, bodyErr := c.payload(h)
	if _, err := c.memory.ReadAt(after[:], int64(c.mapping.Start)); err != nil || before != after {
		if err == nil && decode(after).PublishedAtNS == h.PublishedAtNS {
			c.check("4719-U2", false, "with timestamp %d the header was % x and then % x", h.PublishedAtNS, before, after)
		}
		return
	}
	c.published(h, before, body, bodyErr)
}

// published checks a publication whose header stayed the same while the payload was read. raw is the
// encoded header, and bodyErr is the error of reading the payload.
func (c *contextChecker) published(h wire.ProcessContextHeader, raw [wire.ProcessContextHeaderSize]byte, body []byte, bodyErr error) {
	digest := sha256.Sum256(body)
	if c.last != nil && c.last.header.PublishedAtNS == h.PublishedAtNS {
		// With the same timestamp this must be the same publication.
		c.check("4719-U2", c.last.header == h && (bodyErr != nil || c.last.digest == digest),
			"timestamp %d: header % x, then % x; payload %s, then %s", h.PublishedAtNS,
			encode(c.last.header), raw, hex.EncodeToString(c.last.digest[:8]), hex.EncodeToString(digest[:8]))
		return
	}
	signed := string(h.Signature[:]) == wire.ProcessContextSignature
	c.check("4719-H1", signed, "signature %q", h.Signature[:])
	c.check("4719-H2", h.Version == wire.ProcessContextVersion || h.Version == 1, "version %d", h.Version)
	c.check("4719-H3", true, "")
	c.check("4719-H6", h.PayloadSize <= wire.MaxProcessContextPayload, "payload of %d bytes", h.PayloadSize)
	c.check("4719-H5", bodyErr == nil, "%d bytes at %#x: %v", h.PayloadSize, h.Payload, bodyErr)
	c.check("4719-P9", signed && h.Version != 0 && h.Payload != 0, "timestamp %d with header % x", h.PublishedAtNS, raw)
	c.checkClock(h.PublishedAtNS)
	if c.last != nil {
		c.updates++
		c.check("4719-U6", h.PublishedAtNS > c.last.header.PublishedAtNS, "timestamp %d after %d", h.PublishedAtNS, c.last.header.PublishedAtNS)
	}
	c.last = &observedPublication{h, digest}
	if bodyErr == nil {
		c.checkMessage(body)
	}
}

// checkClock checks that a timestamp is a plausible time since boot: it must not be in the future.
func (c *contextChecker) checkClock(timestamp uint64) {
	now, err := boottime.Now()
	offset, offsetErr := boottimeOffset(c.pid)
	if err = errors.Join(err, offsetErr); err != nil {
		c.skip("4719-H4", "%v", err)
		return
	}
	// Each update must advance the timestamp, by at least a nanosecond. The timestamps of a publisher that
	// updates very often may therefore run ahead of the clock.
	const slack = uint64(time.Second)
	c.check("4719-H4", timestamp <= now+offset+slack, "timestamp %d, while CLOCK_BOOTTIME of the process is %d", timestamp, now+offset)
}

// boottimeOffset returns how far CLOCK_BOOTTIME in the process's time namespace is ahead of ours.
func boottimeOffset(pid int) (uint64, error) {
	theirs, err := boottime.Offset(filepath.Join("/proc", strconv.Itoa(pid)))
	ours, ourErr := boottime.Offset("/proc/self")
	return uint64(theirs - ours), errors.Join(err, ourErr)
}

func (c *contextChecker) checkMessage(body []byte) {
	message := new(processcontextpb.ProcessContext)
	err := proto.Unmarshal(body, message)
	if !c.check("4719-D1", err == nil, "%v; the payload begins with % x", err, body[:min(len(body), 32)]) {
		return
	}
	c.message = message
	resource, attributes := message.GetResource().GetAttributes(), message.GetAttributes()
	for where, list := range map[string][]*commonpb.KeyValue{"resource": resource, "attributes": attributes} {
		seen := map[string]bool{}
		duplicate, empty := "", false
		for _, kv := range list {
			if seen[kv.GetKey()] {
				duplicate = kv.GetKey()
			}
			seen[kv.GetKey()] = true
			empty = empty || kv.GetKey() == ""
		}
		c.check("4719-D2", duplicate == "", "%s has the key %q more than once", where, duplicate)
		c.check("4719-D3", !empty, "%s has an empty key", where)
	}
	i := slices.IndexFunc(resource, func(kv *commonpb.KeyValue) bool { return kv.GetKey() == "service.name" })
	c.check("4719-D3", i >= 0 && resource[i].GetValue().GetStringValue() != "", "the resource has no service.name")
	c.checkReference(attributes)
}

func (c *contextChecker) payload(h wire.ProcessContextHeader) ([]byte, error) {
	if h.PayloadSize > maxPayload {
		return nil, errors.New("too large to be checked")
	}
	body := make([]byte, h.PayloadSize)
	_, err := c.memory.ReadAt(body, int64(h.Payload))
	return body, err
}

// scan finds the process context, and checks its mapping, the process's descriptors and its children.
func (c *contextChecker) scan(ctx context.Context) error {
	var valid []procfs.Mapping
	for m, err := range c.process.Maps(wire.IsProcessContextMapping) {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
		var raw [wire.ProcessContextHeaderSize]byte
		if _, err := c.memory.ReadAt(raw[:], int64(m.Start)); err != nil {
			continue
		}
		h := decode(raw)
		if string(h.Signature[:]) == wire.ProcessContextSignature || h.PublishedAtNS != 0 {
			valid = append(valid, m)
		}
		if len(valid) == 16 {
			break
		}
	}
	previous := c.lastAddress
	c.lastAddress = 0
	if len(valid) == 0 {
		return nil
	}
	c.found = true
	c.check("4719-P11", len(valid) == 1, "%d process contexts, at %#x and %#x", len(valid), valid[0].Start, valid[len(valid)-1].Start)
	m := valid[0]
	if c.mapping.Name != "" {
		previous = c.mapping.Start
	}
	if c.last != nil && previous != 0 {
		c.check("4719-U1", previous == m.Start, "the header was at %#x and is at %#x", previous, m.Start)
	}
	c.mapping = m
	p := m.Perms
	c.check("4719-P3", p.Read && p.Write && !p.Exec && !p.Shared, "permissions %s of %q", p, m.Name)
	c.checkName(m)
	c.checkFlags(m)
	c.checkDescriptors()
	c.checkChildren(m)
	return nil
}

func (c *contextChecker) checkName(m procfs.Mapping) {
	if !kernelNamesMappings() {
		c.skip("4719-P10", "this kernel does not name mappings (CONFIG_ANON_VMA_NAME)")
		return
	}
	c.check("4719-P10", strings.HasPrefix(m.Name, "[anon"), "the mapping is %q", m.Name)
}

// checkFlags checks that the mapping has the flag "dc" (do not copy on fork) in smaps.
func (c *contextChecker) checkFlags(m procfs.Mapping) {
	f, err := os.Open(filepath.Join("/proc", strconv.Itoa(c.pid), "smaps"))
	if err != nil {
		c.skip("4719-P5", "%v", err)
		return
	}
	defer func() { _ = f.Close() }()
	found := false
	lines := bufio.NewScanner(io.LimitReader(f, maxSmaps))
	for lines.Scan() {
		found = found || strings.HasPrefix(lines.Text(), fmt.Sprintf("%08x-%08x ", m.Start, m.End))
		if flags, ok := strings.CutPrefix(lines.Text(), "VmFlags:"); ok && found {
			c.check("4719-P5", slices.Contains(strings.Fields(flags), "dc"), "the mapping's flags are%s, without dc", flags)
			return
		}
	}
	c.skip("4719-P5", "the kernel does not report the flags of the mapping")
}

func (c *contextChecker) checkDescriptors() {
	dir := filepath.Join("/proc", strconv.Itoa(c.pid))
	entries, err := os.ReadDir(filepath.Join(dir, "fd"))
	if err != nil {
		c.skip("4719-P2", "%v", err)
		return
	}
	c.check("4719-P2", true, "")
	for _, e := range entries {
		target, err := os.Readlink(filepath.Join(dir, "fd", e.Name()))
		if err != nil || !strings.HasPrefix(target, "/memfd:OTEL_CTX") {
			continue
		}
		info, err := os.ReadFile(filepath.Join(dir, "fdinfo", e.Name())) //nolint:gosec // G304: in /proc
		if err != nil {
			continue
		}
		var flags uint64
		for line := range strings.Lines(string(info)) {
			_, _ = fmt.Sscanf(line, "flags: %o", &flags)
		}
		const cloexec = 0o2000000
		c.check("4719-P2", flags&cloexec != 0, "descriptor %s is open, with flags %#o", e.Name(), flags)
	}
}

// checkChildren checks that child processes have not inherited the mapping m.
func (c *contextChecker) checkChildren(m procfs.Mapping) {
	children, err := childrenOf(c.pid)
	if err != nil || len(children) == 0 {
		c.skip("4719-F1", "the process had no children")
		return
	}
	for _, pid := range children {
		child, err := procfs.NewFS("/proc").Process(pid)
		if err != nil {
			continue
		}
		inherited := false
		for mapping, err := range child.Maps(wire.IsProcessContextMapping) {
			if err != nil {
				break
			}
			inherited = inherited || mapping.Start == m.Start && mapping.Inode == m.Inode && mapping.Minor == m.Minor
		}
		_ = child.Close()
		c.check("4719-F1", !inherited, "child %d has the mapping at %#x, too", pid, m.Start)
	}
}

func childrenOf(pid int) ([]int, error) {
	tasks, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(pid), "task"))
	if err != nil {
		return nil, err
	}
	var children []int
	for _, task := range tasks {
		text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "task", task.Name(), "children"))
		if err != nil {
			continue
		}
		for field := range strings.FieldsSeq(string(text)) {
			if child, err := strconv.Atoi(field); err == nil && len(children) < maxChildren {
				children = append(children, child)
			}
		}
	}
	return children, nil
}

// finish checks the rules about updates that can be judged only when the observation has ended.
func (c *contextChecker) finish() {
	if c.updates == 0 {
		for _, id := range []string{"4719-U1", "4719-U6", "4719-U7"} {
			c.skip(id, "the context was not updated while it was watched")
		}
		return
	}
	// The publisher stores the timestamp before it names the mapping, so the call for the last update may
	// still follow.
	named, err := c.naming.count()
	for end := time.Now().Add(stuckAfter); err == nil && named < c.updates && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
		named, err = c.naming.count()
	}
	if err == nil && named < c.updates {
		err = checkCounting()
	}
	if err != nil {
		c.skip("4719-U7", "%v", err)
		return
	}
	c.check("4719-U7", named >= c.updates, "%d updates and %d calls of prctl(PR_SET_VMA)", c.updates, named)
}

func decode(raw [wire.ProcessContextHeaderSize]byte) wire.ProcessContextHeader {
	h, err := wire.DecodeProcessContextHeader(&raw)
	if err != nil {
		// Readers reject this header, but the checks still need its fields.
		h = *wire.ProcessContextHeaderIn(slices.Clone(raw[:]))
	}
	return h
}

func encode(h wire.ProcessContextHeader) []byte {
	out := make([]byte, wire.ProcessContextHeaderSize)
	*wire.ProcessContextHeaderIn(out) = h
	return out
}
