package admin

import (
	"context"
	"fmt"
	"reflect"
	"slices"

	"github.com/sightlinedev/sightline/identity"
	adminv1 "github.com/sightlinedev/sightline/proto/sightline/admin/v1"
	viewv1 "github.com/sightlinedev/sightline/proto/sightline/view/v1"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/server/status"
	"github.com/sightlinedev/sightline/views"
	"github.com/sightlinedev/sightline/views/wire"
)

// span is the two versions of a request, over one snapshot.
type span struct {
	from, to views.Version
	snap     *views.Snapshot
}

// DiffViews compares what was published at two versions.
func (s *Server) DiffViews(ctx context.Context, req *adminv1.DiffViewsRequest) (*adminv1.DiffViewsResponse, error) {
	who, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	snap, err := s.complete()
	if err != nil {
		return nil, err
	}
	asked := scope{req.GetNamespace(), req.GetName()}
	if err := asked.check(); err != nil {
		return nil, err
	}
	between, err := spanOf(req, snap)
	if err != nil {
		return nil, err
	}
	changed, whole, err := s.changed(ctx, who, asked, between)
	if err != nil {
		return nil, err
	}
	resp := &adminv1.DiffViewsResponse{}
	for _, n := range changed {
		before, err := s.viewAt(ctx, between, n, between.from, whole)
		if err != nil {
			return nil, err
		}
		after, err := s.viewAt(ctx, between, n, between.to, whole)
		if err != nil {
			return nil, err
		}
		if d := diffOf(before, after); d != nil {
			resp.Diffs = append(resp.Diffs, d)
		}
	}
	return resp, nil
}

func spanOf(req *adminv1.DiffViewsRequest, snap *views.Snapshot) (span, error) {
	b := span{to: snap.Version(), snap: snap}
	var err error
	if b.from, err = views.ParseVersion(req.GetFromVersion()); err != nil {
		return b, status.Field(status.InvalidField, "from_version", "version", err.Error())
	}
	if req.GetToVersion() != "" {
		if b.to, err = views.ParseVersion(req.GetToVersion()); err != nil {
			return b, status.Field(status.InvalidField, "to_version", "version", err.Error())
		}
	}
	switch {
	case snap.Version().Less(b.to):
		return b, status.Field(status.InvalidField, "to_version", "range", fmt.Sprintf("%s is newer than the newest, %s", b.to, snap.Version()))
	case b.to.Less(b.from):
		return b, status.Field(status.InvalidField, "from_version", "range", fmt.Sprintf("%s is newer than %s", b.from, b.to))
	}
	return b, nil
}

// changed lists the services in question that the caller may see, by name, and
// whether the ring of changes reaches back to the older version.
func (s *Server) changed(ctx context.Context, who identity.Principal, asked scope, b span) (names []registry.Name, whole bool, err error) {
	changes, whole, err := s.cfg.Changes(ctx, b.from)
	if err != nil {
		return nil, false, notRead(err)
	}
	if n := asked.service(); asked.name != "" {
		svc, serves := s.row(n)
		known := svc != nil || slices.ContainsFunc(changes, func(c views.Change) bool { return c.Name == n })
		if !s.mayInspect(who, n, serves) || !known {
			return nil, false, status.Hidden("service", n.String())
		}
		return []registry.Name{n}, whole, nil
	}
	if !whole {
		return nil, false, status.Errorf(status.ResumeTooOld, "what changed since %s is not remembered any more", b.from)
	}
	seen := make(map[registry.Name]bool)
	for _, c := range changes {
		if seen[c.Name] || b.to.Less(c.Version) || !asked.covers(c.Name) {
			continue
		}
		seen[c.Name] = true
		if s.maySee(who, c.Name) {
			names = append(names, c.Name)
		}
	}
	slices.SortFunc(names, registry.Name.Compare)
	return names, whole, nil
}

// viewAt is the service's view at a version; nil where it had none. What is
// published now needs no store. whole says that nothing that changed since the
// older version is forgotten.
func (s *Server) viewAt(ctx context.Context, b span, n registry.Name, at views.Version, whole bool) (*views.View, error) {
	now := b.snap.Get(n)
	if now != nil && !at.Less(now.Version()) || at == b.snap.Version() {
		return now, nil
	}
	v, ok, err := s.cfg.ViewAt(ctx, n, at)
	switch {
	case err != nil:
		return nil, notRead(err)
	case !ok && !whole:
		return nil, status.Errorf(status.ResumeTooOld, "what %s was at %s is not kept any more", n, at)
	}
	return v, nil
}

// notRead is the status of a store that cannot be read. It is no part of any
// decision, so nothing else is wrong.
func notRead(err error) error {
	return status.Errorf(status.StoreUnavailable, "the store cannot be read: %v", err)
}

// diffOf compares two views of a service; nil: they are the same.
func diffOf(before, after *views.View) *adminv1.ViewDiff {
	if before == nil && after == nil {
		return nil
	}
	if before != nil && after != nil && before.Endpoint == after.Endpoint && before.Config == after.Config {
		return nil
	}
	d := &adminv1.ViewDiff{Before: headOf(before), After: headOf(after)}
	was, is := membersOf(before), membersOf(after)
	for len(was) > 0 || len(is) > 0 {
		switch {
		case len(is) == 0 || len(was) > 0 && was[0].UID < is[0].UID:
			d.Members = append(d.Members, &adminv1.MemberDiff{Before: memberOf(before, was[0])})
			was = was[1:]
		case len(was) == 0 || is[0].UID < was[0].UID:
			d.Members = append(d.Members, &adminv1.MemberDiff{After: memberOf(after, is[0])})
			is = is[1:]
		default:
			if !sameMember(was[0], is[0]) {
				d.Members = append(d.Members, &adminv1.MemberDiff{Before: memberOf(before, was[0]), After: memberOf(after, is[0])})
			}
			was, is = was[1:], is[1:]
		}
	}
	return d
}

// sameMember leaves the explanation aside: its text may differ where nothing
// that callers are given does.
func sameMember(a, b *views.Member) bool {
	x, y := *a, *b
	x.Evidence, y.Evidence = views.Evidence{}, views.Evidence{}
	return reflect.DeepEqual(x, y)
}

func membersOf(v *views.View) []*views.Member {
	if v == nil {
		return nil
	}
	return v.Members
}

// headOf is a view without its members.
func headOf(v *views.View) *viewv1.View {
	if v == nil {
		return nil
	}
	return wire.Delta(views.Delta{View: v}).GetView()
}

func memberOf(v *views.View, m *views.Member) *viewv1.Member {
	return wire.Delta(views.Delta{View: v, Changed: []*views.Member{m}}).GetChanged()[0]
}
