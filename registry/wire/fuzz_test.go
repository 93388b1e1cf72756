package wire_test

import (
	"errors"
	"testing"

	"google.golang.org/protobuf/proto"

	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
	"github.com/sightlinedev/sightline/registry"
)

// FuzzFromProto reads any bytes as each of the messages. What is refused has
// violations that say something; what is accepted is stable from then on.
func FuzzFromProto(f *testing.F) {
	for n, m := range []proto.Message{
		&registryv1.Service{Namespace: "shop", Name: "cart", Ports: []*registryv1.Port{{Name: "grpc", Number: 8080, Protocol: 5}}, Consumes: []string{"shop/a", "b"}},
		good(),
		&registryv1.Contract{Namespace: "shop", Name: "cart", Callers: &registryv1.Score{Out: proto.Float64(0.2)}, Probe: &registryv1.Probe{}, Identities: []string{"spiffe://t/x", ""}},
		&registryv1.Profile{Supplies: []registryv1.EvidenceClass{1, 3, 3, 9}},
	} {
		data, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(uint8(n), data)
	}
	f.Fuzz(func(t *testing.T, n uint8, data []byte) {
		all := kinds()
		k := all[int(n)%len(all)]
		m := k.proto.ProtoReflect().Type().New().Interface()
		if proto.Unmarshal(data, m) != nil {
			return
		}
		core, err := k.from(m)
		if err != nil {
			checkViolations(t, err)
			return
		}
		once := k.to(core)
		again, err := k.from(once)
		if err != nil {
			t.Fatalf("%v was accepted, and then %v refused: %v", m, once, err)
		}
		if twice := k.to(again); !proto.Equal(once, twice) {
			t.Errorf("%v became %v", once, twice)
		}
	})
}

func checkViolations(t *testing.T, err error) {
	var violations registry.Violations
	if !errors.As(err, &violations) || len(violations) == 0 {
		t.Fatalf("got %v, want violations", err)
	}
	for _, v := range violations {
		if v.Field == "" || v.Rule == "" || v.Detail == "" {
			t.Errorf("%+v says too little", v)
		}
	}
}
