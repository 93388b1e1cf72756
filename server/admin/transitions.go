package admin

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sightlinedev/sightline/health"
	"github.com/sightlinedev/sightline/identity"
	adminv1 "github.com/sightlinedev/sightline/proto/sightline/admin/v1"
	viewv1 "github.com/sightlinedev/sightline/proto/sightline/view/v1"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/server/paging"
	"github.com/sightlinedev/sightline/server/status"
)

const (
	// readEntries is how many entries of the log are read at a time, and
	// searchedEntries how many for one answer: beyond it the answer is short and
	// has a token, so that no request walks a log of years.
	readEntries     = 1000
	searchedEntries = 20_000
)

// ListTransitions returns what changed, newest first. A page may be short, or
// empty, and not be the last: the token says so.
func (s *Server) ListTransitions(ctx context.Context, req *adminv1.ListTransitionsRequest) (*adminv1.ListTransitionsResponse, error) {
	who, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	asked := scope{req.GetNamespace(), req.GetName()}
	q, err := s.queryOf(who, asked, req)
	if err != nil {
		return nil, err
	}
	list := fmt.Sprintf("transitions/%s/%s/%s/%d/%d", req.GetNamespace(), req.GetName(), req.GetInstance(),
		req.GetStartTime().AsTime().UnixNano(), req.GetEndTime().AsTime().UnixNano())
	key, err := paging.After(list, req.GetPageToken())
	if err != nil {
		return nil, err
	}
	w := walk{query: q, skip: parseMark(key)}
	if !w.skip.at.IsZero() {
		w.query.Until = w.skip.at.Add(1)
	}
	size := s.sizes.Of(req.GetPageSize())
	resp := &adminv1.ListTransitionsResponse{}
	visible := make(map[registry.Name]bool)
	for read := 0; ; {
		batch, more, err := s.nextEntries(ctx, &w)
		if err != nil {
			return nil, err
		}
		for i := range batch {
			t := &batch[i]
			if asked.covers(t.Name) && s.seesOnce(visible, who, t.Name) {
				if len(resp.Transitions) == size {
					resp.NextPageToken = paging.Token(list, w.given.String())
					return resp, nil
				}
				resp.Transitions = append(resp.Transitions, s.transitionOf(t))
			}
			w.given.pass(t)
		}
		read += len(batch)
		switch {
		case !more && len(resp.GetTransitions()) == 0 && key == "":
			return resp, s.knownAtAll(asked, req.GetInstance(), q.UID)
		case !more:
			return resp, nil
		case read >= searchedEntries:
			resp.NextPageToken = paging.Token(list, w.given.String())
			return resp, nil
		}
		w.skip, w.query.Until = w.given, w.given.at.Add(1)
	}
}

func (s *Server) queryOf(who identity.Principal, asked scope, req *adminv1.ListTransitionsRequest) (TransitionQuery, error) {
	var q TransitionQuery
	if err := asked.check(); err != nil {
		return q, err
	}
	for field, at := range map[string]*timestamppb.Timestamp{"start_time": req.GetStartTime(), "end_time": req.GetEndTime()} {
		if at != nil && at.CheckValid() != nil {
			return q, status.Field(status.InvalidField, field, "timestamp", "not a time between the years 1 and 9999")
		}
	}
	if req.GetStartTime() != nil {
		q.Since = req.GetStartTime().AsTime()
	}
	if req.GetEndTime() != nil {
		q.Until = req.GetEndTime().AsTime()
	}
	if asked.name == "" {
		if req.GetInstance() != "" {
			return q, status.Field(status.InvalidField, "name", "required", "an instance needs its service")
		}
		return q, nil
	}
	q.Name = asked.service()
	if !s.maySee(who, q.Name) {
		return q, status.Hidden("service", q.Name.String())
	}
	if ref := req.GetInstance(); ref != "" {
		// The log speaks of instances that are gone too: a uid needs no row.
		uid, err := registry.ParseUID(ref)
		if err != nil {
			var live bool
			if uid, live = s.find(q.Name, ref); !live {
				return q, status.Hidden("instance", q.Name.String()+"/"+ref)
			}
		}
		q.UID = uid
	}
	return q, nil
}

// knownAtAll refuses a name of which the log says nothing and that nothing has:
// "nothing changed" would be no answer about what never was.
func (s *Server) knownAtAll(asked scope, instance string, uid registry.UID) error {
	if asked.name == "" {
		return nil
	}
	n := asked.service()
	if svc, _ := s.row(n); svc == nil {
		return status.Hidden("service", n.String())
	}
	if instance != "" {
		if _, live := s.find(n, uid.String()); !live {
			return status.Hidden("instance", n.String()+"/"+instance)
		}
	}
	return nil
}

func (s *Server) seesOnce(seen map[registry.Name]bool, who identity.Principal, n registry.Name) bool {
	ok, asked := seen[n]
	if !asked {
		ok = s.maySee(who, n)
		seen[n] = ok
	}
	return ok
}

// mark is a place in the log, which runs backwards: behind the first n entries
// of one moment. Entries are added at the other end, so it stays where it is.
type mark struct {
	at time.Time
	n  int
}

func (m *mark) pass(t *Transition) {
	if m.at.Equal(t.At) {
		m.n++
		return
	}
	*m = mark{t.At, 1}
}

func (m mark) String() string { return fmt.Sprintf("%d/%d", m.at.UnixNano(), m.n) }

// parseMark reads what String wrote; the start of the log for anything else.
func parseMark(key string) mark {
	at, n, _ := strings.Cut(key, "/")
	nanos, err1 := strconv.ParseInt(at, 10, 64)
	count, err2 := strconv.Atoi(n)
	if err1 != nil || err2 != nil || count < 1 {
		return mark{}
	}
	return mark{time.Unix(0, nanos), count}
}

// walk reads the log backwards.
type walk struct {
	query TransitionQuery
	skip  mark // entries of its moment that were read before
	given mark // behind the last entry looked at
}

// nextEntries reads some entries, those that were read before left out.
func (s *Server) nextEntries(ctx context.Context, w *walk) (batch []Transition, more bool, err error) {
	w.query.Limit = readEntries + w.skip.n
	batch, err = s.cfg.Transitions(ctx, w.query)
	if err != nil {
		return nil, false, notRead(err)
	}
	more = len(batch) == w.query.Limit
	w.given = w.skip
	for n := w.skip.n; n > 0 && len(batch) > 0 && batch[0].At.Equal(w.skip.at); n-- {
		batch = batch[1:]
	}
	return batch, more, nil
}

func (s *Server) transitionOf(t *Transition) *adminv1.Transition {
	out := &adminv1.Transition{
		Time: stamp(t.At), Version: versionOf(t.Version), Service: t.Name.String(), Rule: t.Rule.String(), Detail: t.Detail,
		From: stateOf(t.From), To: stateOf(t.To),
	}
	if t.UID != 0 {
		out.Uid = t.UID.String()
		s.cfg.Read(func(ix *registry.Index) {
			if i, live := ix.Instance(t.UID); live {
				out.Label = i.Label
			}
		})
	}
	switch {
	case t.Removal != registry.NotRemoved:
		out.To, out.Event = viewv1.State_STATE_UNSPECIFIED, "removal"
	case !t.Member && t.Rule == health.Admission:
		out.Event = "not admitted"
	}
	return out
}

func stateOf(st health.State) viewv1.State { return viewv1.State(st) + 1 }
