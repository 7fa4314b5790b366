// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package profiler

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	processcontextpb "go.opentelemetry.io/proto/otlp/processcontext/v1development"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	"google.golang.org/protobuf/proto"

	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/resourcepublisher"
)

// An incessant publisher numbers its publications, and the number determines every byte of a
// publication. A publication has three attributes: "a" is a text, "n" is the number, and service.name
// repeats the number, so that the number is at both ends of the message.

// largestText is the maximum size of a text.
const largestText = 60_000

// noise is random text. Each publication's text is a part of it, and the texts of noiseOffsets
// successive numbers start at different offsets, so that tests detect a mixture of two texts.
var noise = func() string {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
	random := rand.New(rand.NewPCG(1, 2))
	b := make([]byte, largestText+noiseOffsets)
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
	length := 4
	switch kind := n % 20; {
	case kind == 7:
	case kind == 13:
		length = largestText
	case kind%2 == 0:
		length += random.IntN(2 << 10)
	default:
		length += random.IntN(largestText - length)
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

// publishIncessantly is the role of a child that publishes number 0 and sends "published". After a line
// from the parent it updates until it is killed.
func publishIncessantly(parent *childproc.Parent) {
	parent.AdmitReaders()
	pub, err := resourcepublisher.New(numbered(0))
	parent.Must(err)
	parent.Send("published")
	parent.Receive()
	_, err = updateUntil(new(atomic.Bool), pub)
	parent.Must(err)
}
