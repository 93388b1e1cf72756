package cli

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/sightlinedev/sightline/proto/sightline/admin/v1"
	viewv1 "github.com/sightlinedev/sightline/proto/sightline/view/v1"
)

// Sizes of a history as it is shown by itself.
const (
	historySince = time.Hour
	historyLimit = 50
	stripCells   = 60
)

const historyLong = `Prints the transitions of an instance, or of all instances of a service, newest
first, with the rule that decided and the numbers that it saw.

Above them a strip for each instance that changed, oldest at the left; within one
cell the worst state of its time is shown:
  #  eligible    +  degraded    ?  unknown    _  ineligible    .  not there, or not known
It spans the transitions shown, and not the whole of --since where nothing was.

The last column is text and may hold spaces; -o jsonl has every field.`

func (a *app) historyCommand() *cobra.Command {
	var since time.Duration
	var limit int
	cmd := &cobra.Command{
		Use: "history NS/SVC[/INST]", Short: "What changed, when, and by which evidence", Args: cobra.ExactArgs(1),
		Long:    historyLong,
		Example: "  sightline history shop/checkout\n  sightline history shop/checkout/checkout-3 --since 24h --limit 200",
		RunE: func(cmd *cobra.Command, args []string) error {
			of, err := a.splitSubject(args[0])
			if err != nil {
				return err
			}
			if since <= 0 || limit <= 0 {
				return usagef("--since %s and --limit %d have to be above 0", since, limit)
			}
			return a.call(cmd.Context(), func(ctx context.Context, conn *grpc.ClientConn, _ target) error {
				now := time.Now()
				all, more, err := transitions(ctx, conn, of, now.Add(-since), limit)
				if err != nil {
					return err
				}
				return a.printHistory(all, of, history{from: now.Add(-since), to: now, since: since, more: more})
			})
		},
	}
	cmd.Flags().DurationVar(&since, "since", historySince, "how far back")
	cmd.Flags().IntVar(&limit, "limit", historyLimit, "most transitions to show")
	return cmd
}

// transitions reads up to limit transitions, newest first, and says whether
// there are more.
func transitions(ctx context.Context, conn *grpc.ClientConn, of subject, from time.Time, limit int) (all []*adminv1.Transition, more bool, err error) {
	req := &adminv1.ListTransitionsRequest{Namespace: of.namespace, Name: of.service, Instance: of.instance, StartTime: timestamppb.New(from), PageSize: 1000}
	for {
		r, err := adminv1.NewAdminServiceClient(conn).ListTransitions(ctx, req)
		if err != nil {
			return nil, false, err
		}
		all = append(all, r.GetTransitions()...)
		if req.PageToken = r.GetNextPageToken(); req.PageToken == "" || len(all) > limit {
			return all[:min(len(all), limit)], len(all) > limit || req.PageToken != "", nil
		}
	}
}

// history is the span that was asked for.
type history struct {
	from, to time.Time
	since    time.Duration
	more     bool // older ones are left out
}

func (a *app) printHistory(all []*adminv1.Transition, of subject, h history) error {
	l := historyListing(all, h.to)
	l.empty = fmt.Sprintf("no transition of %s within %s: its verdicts held. Look further back with --since, or at now with: %s why %s", of, span(h.since), a.self, of)
	if h.more {
		l.warnings = append(l.warnings, fmt.Sprintf("older transitions are left out: the newest %d are shown; see --limit", len(all)))
	}
	if a.printer().human() && len(all) > 0 && !a.noHeaders {
		oldest := all[len(all)-1].GetTime().AsTime()
		if lead := oldest.Add(-h.to.Sub(oldest) / 10); lead.After(h.from) {
			h.from = lead
		}
		a.strips(all, h)
	}
	return a.printer().list(l)
}

func historyListing(all []*adminv1.Transition, now time.Time) listing {
	l := listing{
		kind:    "TransitionList",
		columns: []string{"TIME", "INSTANCE", "FROM", "TO", "RULE", "VIEW", "AGE", "DETAIL"},
		prose:   true,
	}
	head := "" // the newest version among them
	for _, t := range all {
		head = cmp.Or(head, t.GetVersion())
	}
	for _, t := range all {
		name := shown(t.GetLabel(), t.GetUid())
		at := t.GetTime().AsTime()
		l.rows = append(l.rows, row{name: t.GetService() + "/" + name, item: t, cells: []string{
			at.Local().Format("01-02T15:04:05.000"), name, transitionState(t.GetFrom()), transitionState(t.GetTo()),
			cmp.Or(t.GetRule(), "-"), seqOf(cmp.Or(t.GetVersion(), "-"), head), age(at, now), transitionDetail(t),
		}})
	}
	return l
}

func transitionState(st viewv1.State) string {
	if st == viewv1.State_STATE_UNSPECIFIED {
		return "-"
	}
	return lower(st.String(), "STATE_")
}

// transitionDetail leads with what happened where it is no verdict.
func transitionDetail(t *adminv1.Transition) string {
	if t.GetEvent() == "" {
		return t.GetDetail()
	}
	return t.GetEvent() + ": " + t.GetDetail()
}

// strips draws each instance that changed, by name.
func (a *app) strips(all []*adminv1.Transition, h history) {
	byName := make(map[string][]*adminv1.Transition) // newest first
	for _, t := range all {
		name := shown(t.GetLabel(), t.GetUid())
		byName[name] = append(byName[name], t)
	}
	width := 0
	for name := range byName {
		width = max(width, len(name))
	}
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		fmt.Fprintf(a.out, "%-*s  %s  %s\n", width, plain(name), strip(byName[name], h), stripCount(byName[name]))
	}
	fmt.Fprintf(a.out, "%-*s  %-*s%s\n\n", width, "", stripCells-len("now"), span(h.to.Sub(h.from))+" ago", "now")
}

func stripCount(changes []*adminv1.Transition) string { return counted(len(changes), "change") }

// strip draws the states of one instance over the span, from its transitions,
// newest first. In a cell the worst state wins: a short outage has to be seen.
func strip(changes []*adminv1.Transition, h history) string {
	cells := make([]rune, stripCells)
	cell := h.to.Sub(h.from) / stripCells
	next := len(changes) - 1
	state := changes[next].GetFrom()
	if state == viewv1.State_STATE_UNKNOWN { // so a log begins for who was not there
		state = viewv1.State_STATE_UNSPECIFIED
	}
	for k := range cells {
		end := h.from.Add(time.Duration(k+1) * cell)
		worst := state
		for ; next >= 0 && (changes[next].GetTime().AsTime().Before(end) || k == stripCells-1); next-- {
			state = changes[next].GetTo()
			if badness(state) > badness(worst) {
				worst = state
			}
		}
		cells[k] = mark(worst)
	}
	return string(cells)
}

// badness orders states for a strip.
func badness(st viewv1.State) int {
	return strings.IndexRune("#?+_", mark(st))
}

func mark(st viewv1.State) rune {
	switch st {
	case viewv1.State_STATE_ELIGIBLE:
		return '#'
	case viewv1.State_STATE_DEGRADED:
		return '+'
	case viewv1.State_STATE_UNKNOWN:
		return '?'
	case viewv1.State_STATE_INELIGIBLE:
		return '_'
	}
	return '.'
}
