// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package profiler

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	processcontextpb "go.opentelemetry.io/proto/otlp/processcontext/v1development"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	"google.golang.org/protobuf/proto"

	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/reader"
	"github.com/otelctx/otelctx/resourcepublisher"
)

// An incessant publisher numbers its publications, and the number determines every byte of a
// publication. A publication has three attributes: "a" is a text, "n" is the number, and service.name
// repeats the number, so that the number is at both ends of the message.

// These are the extreme message sizes of publications with numbers from 128 to 16,383.
const (
	smallestMessage = 50
	largestMessage  = 60 << 10
)

// noise is random text. Each publication's text is a part of it, and the texts of noiseOffsets
// successive numbers start at different offsets, so that tests detect a mixture of two texts.
var noise = func() string {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
	random := rand.New(rand.NewPCG(1, 2))
	b := make([]byte, largestMessage+noiseOffsets)
	for i := range b {
		b[i] = alphabet[random.IntN(len(alphabet))]
	}
	return string(b)
}()

const noiseOffsets = 8191

// text returns the text of publication n. Some texts have the minimum or the maximum length. The
// others have lengths in between, more than half of them up to about 2 KiB.
func text(n int) string {
	random := rand.New(rand.NewPCG(3, uint64(n)))
	const shortest, longest = smallestMessage - 46, largestMessage - 54
	length := shortest
	switch kind := n % 20; {
	case kind == 7:
	case kind == 13:
		length = longest
	case kind%2 == 0:
		length += random.IntN(2 << 10)
	default:
		length += random.IntN(longest - shortest)
	}
	offset := n * 4099 % noiseOffsets
	return noise[offset:][:length]
}

func serviceName(n int) string { return fmt.Sprintf("%05d", n) }

// numbered returns the resource of publication n.
func numbered(n int) *resource.Resource {
	return resource.NewSchemaless(
		attribute.String("a", text(n)), attribute.Int("n", n), attribute.String("service.name", serviceName(n)),
	)
}

// numberOf returns the number of the publication that the observation shows. It returns an error
// unless every byte belongs to that publication.
func numberOf(o observation) (int, error) {
	attrs := o.message.GetResource().GetAttributes()
	if len(attrs) != 3 {
		return 0, fmt.Errorf("%d attributes instead of 3", len(attrs))
	}
	n := attrs[1].GetValue().GetIntValue()
	want := &processcontextpb.ProcessContext{Resource: &resourcepb.Resource{}}
	want.Resource.Attributes = append(want.Resource.Attributes,
		keyValue("a", str(text(int(n)))), keyValue("n", integer(n)), keyValue("service.name", str(serviceName(int(n)))))
	if !proto.Equal(want, o.message) {
		return 0, fmt.Errorf("not publication %d: service.name %.20q, text of %d bytes",
			n, attrs[2].GetValue().GetStringValue(), len(attrs[0].GetValue().GetStringValue()))
	}
	if size := proto.Size(want); o.payloadSize != 0 && o.payloadSize != size {
		return 0, fmt.Errorf("publication %d in %d bytes instead of %d", n, o.payloadSize, size)
	}
	return int(n), nil
}

// updateUntil publishes numbers 1, 2, 3, ... until stop is true, in bursts with pauses between them.
// It returns the last number.
func updateUntil(stop *atomic.Bool, pub *resourcepublisher.Publisher) (int, error) {
	random := rand.New(rand.NewPCG(5, 6))
	for n := 1; ; {
		for range 1 + random.IntN(16) {
			if err := pub.Update(numbered(n)); err != nil {
				return n, fmt.Errorf("publication %d: %w", n, err)
			}
			if stop.Load() {
				return n, nil
			}
			n++
		}
		time.Sleep(time.Duration(random.IntN(int(longestPause))))
	}
}

// longestPause is the maximum pause between bursts. Without pauses, a large context rarely stays
// unchanged for as long as it takes to read it.
const longestPause = 500 * time.Microsecond

// publishIncessantly is the role of a child that publishes number 0 and sends "published". The first
// line from the parent starts updates and the second line stops them. The child then sends the last
// number.
func publishIncessantly(parent *childproc.Parent) {
	parent.AdmitReaders()
	pub, err := resourcepublisher.NewPublisher(numbered(0))
	parent.Must(err)
	parent.Send("published")
	parent.Receive()
	var stop atomic.Bool
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		parent.Receive()
		stop.Store(true)
	}()
	last, err := updateUntil(&stop, pub)
	parent.Must(err)
	<-stopped
	parent.Send("%d", last)
	parent.Receive()
	parent.Must(pub.Shutdown(context.Background()))
}

// readIncessantly is the role of a child that keeps reading the process whose id is in the first line.
// It sends "reading" after the first successful read.
func readIncessantly(parent *childproc.Parent) {
	line, _ := parent.Receive()
	pid, err := strconv.Atoi(line)
	parent.Must(err)
	p, err := reader.Open(pid)
	parent.Must(err)
	for said := false; ; {
		_, err := p.ProcessContext(context.Background())
		if errors.Is(err, reader.ErrBusy) {
			continue
		}
		parent.Must(err)
		if !said {
			parent.Send("reading")
			said = true
		}
	}
}

func TestNumberedPublicationsDiffer(t *testing.T) {
	smallest, largest := largestMessage, 0
	for n := 128; n < 16_384; n += 3 {
		o := observation{message: &processcontextpb.ProcessContext{Resource: &resourcepb.Resource{}}}
		o.message.Resource.Attributes = append(o.message.Resource.Attributes,
			keyValue("a", str(text(n))), keyValue("n", integer(int64(n))), keyValue("service.name", str(serviceName(n))))
		size := proto.Size(o.message)
		smallest, largest = min(smallest, size), max(largest, size)
		if got, err := numberOf(o); err != nil || got != n {
			t.Fatalf("publication %d is identified as %d, %v", n, got, err)
		}
		// Mix two texts, like a read that is interrupted by an update.
		a, b := text(n), text(n+1)
		half := min(len(a), len(b)) / 2
		if half < 8 {
			continue // Such short texts may be equal by chance.
		}
		o.message.Resource.Attributes[0] = keyValue("a", str(strings.Join([]string{b[:half], a[half:]}, "")))
		if _, err := numberOf(o); err == nil {
			t.Fatalf("a mixture of %d and %d was accepted", n, n+1)
		}
	}
	if smallest != smallestMessage || largest != largestMessage {
		t.Errorf("messages have %d to %d bytes", smallest, largest)
	}
}
