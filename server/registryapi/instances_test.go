package registryapi

import (
	"io"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sightlinedev/sightline/identity"
	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/server/status"
)

// TestAnInstanceThroughItsLife: registered by itself, renewed, changed, seen,
// and gone.
func TestAnInstanceThroughItsLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.create("shop/checkout")
		dry, err := w.RegisterInstance(as(checkout), &registryv1.RegisterInstanceRequest{Instance: instance("shop", "checkout", "a", "10.0.0.1"), ValidateOnly: true})
		if err != nil || dry.GetInstance().GetUid() != "" || len(w.renewals()) != 0 {
			t.Errorf("a dry run: %v, %v", dry, err)
		}
		reg, err := w.RegisterInstance(as(checkout), &registryv1.RegisterInstanceRequest{Instance: instance("shop", "checkout", "a", "10.0.0.1")})
		if err != nil {
			t.Fatal(err)
		}
		i := reg.GetInstance()
		uid, _ := registry.ParseUID(i.GetUid())
		if i.GetIdentity() != checkout || reg.GetLease().AsDuration() != 25*time.Second || i.GetLease().AsDuration() != 25*time.Second ||
			i.GetProof() != registryv1.ProofKind_PROOF_KIND_REGISTRATION || !slices.Equal(w.renewals(), []registry.UID{uid}) {
			t.Errorf("registered as %v", reg)
		}
		if renew, err := w.RenewLease(as(checkout), &registryv1.RenewLeaseRequest{Uid: i.GetUid()}); err != nil ||
			renew.GetLease().AsDuration() != 25*time.Second || !slices.Equal(w.renewals(), []registry.UID{uid}) {
			t.Errorf("renewed: %v, %v", renew, err)
		}
		_, err = w.RenewLease(as(checkout), &registryv1.RenewLeaseRequest{Uid: "17"})
		wants(t, err, codes.InvalidArgument, status.InvalidField)

		next := proto.Clone(i).(*registryv1.Instance)
		next.Weight, next.Lease = proto.Uint32(7), nil
		up, err := w.UpdateInstance(as(checkout), &registryv1.UpdateInstanceRequest{Instance: next})
		if err != nil || up.GetInstance().GetWeight() != 7 || up.GetInstance().GetLease().AsDuration() != 25*time.Second {
			t.Errorf("updated: %v, %v; nobody takes the lease off itself", up, err)
		}
		_, err = w.UpdateInstance(as(checkout), &registryv1.UpdateInstanceRequest{Instance: next}) // read before that
		wants(t, err, codes.Aborted, status.RevisionConflict)
		next.Revision, next.Endpoint = 0, &registryv1.Instance_Address{Address: "10.0.0.9"}
		_, err = w.UpdateInstance(as(checkout), &registryv1.UpdateInstanceRequest{Instance: next})
		wants(t, err, codes.InvalidArgument, status.InvalidField)
		if got := fields(err); !slices.Equal(got, []string{"instance.address:IMMUTABLE"}) {
			t.Errorf("another address: %v", got)
		}

		for _, req := range []*registryv1.GetInstanceRequest{{Instance: i.GetUid()}, {Namespace: "shop", Service: "checkout", Instance: "a"}} {
			if got, err := w.GetInstance(as(operator), req); err != nil || !proto.Equal(got.GetInstance(), up.GetInstance()) {
				t.Errorf("%v: %v, %v", req, got, err)
			}
		}
		if dry, err := w.DeregisterInstance(as(checkout), &registryv1.DeregisterInstanceRequest{Instance: i.GetUid(), ValidateOnly: true}); err != nil {
			t.Errorf("%v, %v", dry, err)
		}
		if del, err := w.DeregisterInstance(as(checkout), &registryv1.DeregisterInstanceRequest{Namespace: "shop", Service: "checkout", Instance: "a"}); err != nil || del.GetRevision() == 0 {
			t.Errorf("%v, %v", del, err)
		}
		_, err = w.DeregisterInstance(as(checkout), &registryv1.DeregisterInstanceRequest{Instance: i.GetUid()})
		wants(t, err, codes.NotFound, status.NotFound)
		_, err = w.RenewLease(as(checkout), &registryv1.RenewLeaseRequest{Uid: i.GetUid()})
		wants(t, err, codes.NotFound, status.LeaseGone)
	})
}

// TestAnInstanceSpeaksForItselfOnly.
func TestAnInstanceSpeaksForItselfOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.create("shop/checkout", "bank/ledger")
		var refused []string
		w.server.cfg.Events.Refused = func(_ identity.Principal, n registry.Name, rule string) {
			refused = append(refused, n.String()+": "+rule)
		}
		mine := w.registerAs(checkout, "shop/checkout", "a", "10.0.0.1")

		other := instance("shop", "checkout", "b", "10.0.0.2")
		other.Identity = checkout
		_, err := w.RegisterInstance(as(cart), &registryv1.RegisterInstanceRequest{Instance: other})
		wants(t, err, codes.PermissionDenied, status.NotOneself)
		_, err = w.RegisterInstance(as(ledger), &registryv1.RegisterInstanceRequest{Instance: instance("shop", "checkout", "b", "10.0.0.2")})
		wants(t, err, codes.NotFound, status.NotFound)
		_, err = w.RegisterInstance(as(stranger), &registryv1.RegisterInstanceRequest{Instance: instance("shop", "checkout", "b", "10.0.0.2")})
		wants(t, err, codes.NotFound, status.NotFound)
		if len(refused) != 3 {
			t.Errorf("told of %q", refused)
		}
		_, err = w.RegisterInstance(as(cart), &registryv1.RegisterInstanceRequest{Instance: instance("shop", "checkout", "a", "10.0.0.2")})
		wants(t, err, codes.AlreadyExists, status.AlreadyExists) // the label is another identity's
		_, err = w.DeregisterInstance(as(cart), &registryv1.DeregisterInstanceRequest{Instance: mine.GetUid()})
		wants(t, err, codes.NotFound, status.NotFound)

		external := &registryv1.Instance{Namespace: "shop", Service: "checkout", Endpoint: &registryv1.Instance_Host{Host: "pay.example.org"}}
		_, err = w.RegisterInstance(as(checkout), &registryv1.RegisterInstanceRequest{Instance: external})
		wants(t, err, codes.FailedPrecondition, status.AddressUnproved)

		// The contract says who serves: then those do, and their namespace does not.
		contract := &registryv1.Contract{Namespace: "shop", Name: "checkout", Identities: []string{checkout, stranger}}
		if _, err := w.PutContract(as(operator), &registryv1.PutContractRequest{Contract: contract}); err != nil {
			t.Fatal(err)
		}
		_, err = w.RegisterInstance(as(cart), &registryv1.RegisterInstanceRequest{Instance: instance("shop", "checkout", "c", "10.0.0.3")})
		wants(t, err, codes.PermissionDenied, status.NotOneself)
		w.registerAs(stranger, "shop/checkout", "d", "10.0.0.4")

		if i, ok := w.writer.Lookup(uidOf(t, mine)); !ok || i.Label != "a" {
			t.Errorf("the first is %v, %v", i, ok)
		}
	})
}

// TestAnAddressHasOneTenant (C36): the newer one that proved it, under an id of
// its own; what comes late about an older one touches nobody.
func TestAnAddressHasOneTenant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.create("bank/ledger", "shop/checkout")
		l1 := w.registerAs(ledger, "bank/ledger", "l", "10.20.5.9")
		o1 := w.registerAs(checkout, "shop/checkout", "o", "10.20.5.9")
		if _, live := w.writer.Lookup(uidOf(t, l1)); live {
			t.Error("ledger still has the address")
		}
		o2 := w.registerAs(checkout, "shop/checkout", "o", "10.20.5.9") // a restart
		if l1.GetUid() == o1.GetUid() || o1.GetUid() == o2.GetUid() {
			t.Errorf("ids repeat: %s %s %s", l1.GetUid(), o1.GetUid(), o2.GetUid())
		}
		_, err := w.DeregisterInstance(as(checkout), &registryv1.DeregisterInstanceRequest{Instance: o1.GetUid()})
		wants(t, err, codes.NotFound, status.NotFound)
		_, err = w.RenewLease(as(ledger), &registryv1.RenewLeaseRequest{Uid: l1.GetUid()})
		wants(t, err, codes.NotFound, status.LeaseGone)
		if _, live := w.writer.Lookup(uidOf(t, o2)); !live {
			t.Error("the live one is gone")
		}
		list, err := w.ListInstances(as(operator), &registryv1.ListInstancesRequest{})
		if err != nil || len(list.GetInstances()) != 1 {
			t.Errorf("%v, %v", list, err)
		}
	})
}

func uidOf(t *testing.T, i *registryv1.Instance) registry.UID {
	t.Helper()
	uid, err := registry.ParseUID(i.GetUid())
	if err != nil {
		t.Fatal(err)
	}
	return uid
}

type holder struct {
	registryv1.RegistryService_HoldInstanceClient
	t *testing.T
}

func (w *world) hold(id string, i *registryv1.Instance) (holder, *registryv1.HoldInstanceResponse) {
	w.t.Helper()
	h, err := w.HoldInstance(as(id))
	if err != nil {
		w.t.Fatal(err)
	}
	return holder{h, w.t}, holder{h, w.t}.frame(&registryv1.HoldInstanceRequest{Frame: &registryv1.HoldInstanceRequest_Register{Register: i}})
}

// frame sends a frame and returns its answer.
func (h holder) frame(f *registryv1.HoldInstanceRequest) *registryv1.HoldInstanceResponse {
	h.t.Helper()
	resp, err := h.try(f)
	if err != nil {
		h.t.Fatal(err)
	}
	return resp
}

func (h holder) try(f *registryv1.HoldInstanceRequest) (*registryv1.HoldInstanceResponse, error) {
	if err := h.Send(f); err != nil {
		return nil, err
	}
	return h.Recv()
}

func letGo(after time.Duration) *registryv1.HoldInstanceRequest {
	return &registryv1.HoldInstanceRequest{Frame: &registryv1.HoldInstanceRequest_Deregister{Deregister: durationpb.New(after)}}
}

// TestEveryFrameRenews, and a stream that breaks says nothing: the instance is
// taken up again under its uid.
func TestEveryFrameRenews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.create("shop/checkout")
		h, first := w.hold(checkout, instance("shop", "checkout", "a", "10.0.0.1"))
		uid := uidOf(t, first.GetInstance())
		if first.GetLease().AsDuration() != 25*time.Second || !slices.Equal(w.renewals(), []registry.UID{uid}) {
			t.Errorf("first answer %v", first)
		}
		for range 3 {
			time.Sleep(8 * time.Second)
			if a := h.frame(&registryv1.HoldInstanceRequest{}); a.GetInstance() != nil || a.GetLease().AsDuration() != 25*time.Second {
				t.Errorf("answer %v", a)
			}
		}
		if got := w.renewals(); !slices.Equal(got, []registry.UID{uid, uid, uid}) {
			t.Errorf("renewed %v", got)
		}
		time.Sleep(time.Hour) // an open stream alone renews nothing
		if got := w.renewals(); len(got) != 0 {
			t.Errorf("renewed %v without a frame", got)
		}
		h.CloseSend()
		if _, err := h.Recv(); err != io.EOF {
			t.Errorf("closed with %v", err)
		}
		if i, live := w.writer.Lookup(uid); !live || i.Draining {
			t.Errorf("a closed stream left %v, %v", i, live)
		}
		again := proto.Clone(first.GetInstance()).(*registryv1.Instance)
		h, second := w.hold(checkout, again)
		if second.GetInstance().GetUid() != first.GetInstance().GetUid() || !slices.Equal(w.renewals(), []registry.UID{uid}) {
			t.Errorf("taken up as %v", second)
		}
		h.CloseSend()
		again.Uid = "i99"
		h2, err := w.HoldInstance(as(checkout))
		if err != nil {
			t.Fatal(err)
		}
		_, err = holder{h2, t}.try(&registryv1.HoldInstanceRequest{Frame: &registryv1.HoldInstanceRequest_Register{Register: again}})
		wants(t, err, codes.NotFound, status.NotFound)
		h3, err := w.HoldInstance(as(checkout))
		if err != nil {
			t.Fatal(err)
		}
		_, err = holder{h3, t}.try(&registryv1.HoldInstanceRequest{})
		wants(t, err, codes.InvalidArgument, status.InvalidRequest)
	})
}

// TestWhatIsHeldHasALease, also when an operator holds it for somebody: without
// one a holder that is killed would leave its instance for ever.
func TestWhatIsHeldHasALease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.create("shop/checkout")
		i := instance("shop", "checkout", "a", "10.0.0.1")
		i.Identity = checkout
		h, first := w.hold(operator, i)
		if first.GetLease().AsDuration() != 25*time.Second {
			t.Errorf("held with a lease of %s", first.GetLease().AsDuration())
		}
		h.CloseSend()
	})
}

// TestLettingGo, at once and after a grace, in which a return is a return.
func TestLettingGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.create("shop/checkout")
		h, first := w.hold(checkout, instance("shop", "checkout", "a", "10.0.0.1"))
		h.frame(letGo(0))
		if _, err := h.Recv(); err != io.EOF {
			t.Errorf("ended with %v", err)
		}
		if _, live := w.writer.Lookup(uidOf(t, first.GetInstance())); live {
			t.Error("it is still there")
		}

		h, first = w.hold(checkout, instance("shop", "checkout", "b", "10.0.0.2"))
		uid := uidOf(t, first.GetInstance())
		_, err := h.try(letGo(-time.Second))
		wants(t, err, codes.InvalidArgument, status.InvalidField)
		h, _ = w.hold(checkout, first.GetInstance())
		h.frame(letGo(30 * time.Second))
		time.Sleep(29 * time.Second)
		if i, live := w.writer.Lookup(uid); !live || !i.Draining {
			t.Errorf("within the grace: %v, %v", i, live)
		}
		h, _ = w.hold(checkout, first.GetInstance()) // it stays after all
		time.Sleep(time.Minute)
		if i, live := w.writer.Lookup(uid); !live || i.Draining {
			t.Errorf("after its return: %v, %v", i, live)
		}
		h.frame(letGo(30 * time.Second))
		time.Sleep(31 * time.Second)
		if _, live := w.writer.Lookup(uid); live {
			t.Error("it outlived its grace")
		}

		// One without a lease gets one: should this process die, it lapses.
		i := instance("shop", "checkout", "c", "10.0.0.3")
		i.Identity = checkout
		reg, err := w.RegisterInstance(as(operator), &registryv1.RegisterInstanceRequest{Instance: i})
		if err != nil || reg.GetInstance().GetLease() != nil {
			t.Fatalf("%v, %v", reg, err)
		}
		if _, err := w.DeregisterInstance(as(operator), &registryv1.DeregisterInstanceRequest{Instance: reg.GetInstance().GetUid(), Grace: durationpb.New(time.Minute)}); err != nil {
			t.Fatal(err)
		}
		w.server.Close()
		w.server.Close()
		time.Sleep(2 * time.Minute)
		if i, live := w.writer.Lookup(uidOf(t, reg.GetInstance())); !live || !i.Draining || i.Lease != time.Minute {
			t.Errorf("after a stop: %+v, %v", i, live)
		}
	})
}

// TestARemovedInstanceIsTold at its next frame.
func TestARemovedInstanceIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.create("shop/checkout")
		for name, remove := range map[string]func(uid string){
			"operator": func(uid string) {
				if _, err := w.DeregisterInstance(as(operator), &registryv1.DeregisterInstanceRequest{Instance: uid}); err != nil {
					t.Error(err)
				}
			},
			"successor": func(string) { w.registerAs(checkout, "shop/checkout", "a", "10.0.0.1") },
			"service": func(string) {
				if _, err := w.DeleteService(as(operator), &registryv1.DeleteServiceRequest{Namespace: "shop", Name: "checkout"}); err != nil {
					t.Error(err)
				}
				w.create("shop/checkout")
			},
		} {
			t.Log(name)
			h, first := w.hold(checkout, instance("shop", "checkout", "a", "10.0.0.1"))
			remove(first.GetInstance().GetUid())
			w.renewals()
			_, err := h.try(&registryv1.HoldInstanceRequest{})
			wants(t, err, codes.NotFound, status.LeaseGone)
			if got := w.renewals(); len(got) != 0 {
				t.Errorf("renewed %v", got)
			}
		}
	})
}
