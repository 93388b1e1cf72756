package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	adminv1 "github.com/sightlinedev/sightline/proto/sightline/admin/v1"
)

// probeWithin bounds each look at a listener of a server that does not answer.
const probeWithin = time.Second

func (a *app) statusCommand() *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "How the control plane is, on one screen", Args: cobra.NoArgs,
		Long: `Prints readiness, views, clients, guards and the store on one screen. When nobody
answers it says what it tried, listener by listener.

Exit code 0: all well; 3: nobody answered; 6: degraded (a check fails, a guard
holds, the store is read-only, clients reject views, additions wait).`,
		Example: "  sightline status\n  sightline status -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			var at target
			err := a.call(cmd.Context(), func(ctx context.Context, conn *grpc.ClientConn, t target) error {
				at = t
				resp, err := adminv1.NewAdminServiceClient(conn).GetStatus(ctx, &adminv1.GetStatusRequest{})
				if err != nil {
					return err
				}
				return a.printStatus(resp.GetStatus(), t)
			})
			var e *exitError
			if errors.As(err, &e) && e.code == exitUnreachable {
				return errors.Join(a.printDown(cmd.Context(), at), err)
			}
			return err
		},
	}
}

// line prints a fact of a screen under its label.
func (a *app) line(label, format string, args ...any) {
	fmt.Fprintf(a.out, "%-10s %s\n", label, plain(fmt.Sprintf(format, args...)))
}

func (a *app) printStatus(s *adminv1.Status, t target) error {
	problems := problemsOf(s)
	if !a.printer().human() {
		item := row{name: t.API, item: s}
		if err := a.printer().list(listing{kind: "StatusList", rows: []row{item}, warnings: problems}); err != nil {
			return err
		}
	} else {
		a.statusScreen(s, t, problems)
	}
	if len(problems) > 0 {
		return &exitError{code: exitDegraded, err: errors.New("")} // the screen has said why
	}
	return nil
}

func (a *app) statusScreen(s *adminv1.Status, t target, problems []string) {
	state := "ready"
	if !s.GetReady() {
		state = "NOT READY"
	}
	a.line("server", "%s  %s  version %s  up %s", t.where(), state, s.GetVersion(), age(s.GetStartTime().AsTime(), time.Now()))
	a.line("region", "%s  zone %s", s.GetRegion(), cell(s.GetZone()))
	a.line("views", "%s at view %s", counted(s.GetServices(), "service"), seqOf(s.GetHeadVersion(), s.GetHeadVersion()))
	i := s.GetInstances()
	a.line("instances", "%d eligible, %d degraded, %d unknown, %d ineligible, %d draining, %d not admitted",
		i.GetEligible(), i.GetDegraded(), i.GetUnknown(), i.GetIneligible(), i.GetDraining(), i.GetUnadmitted())
	c := s.GetClients()
	a.line("clients", "%d connected, %d at head, %d behind, %d rejecting, %d waiting for their turn",
		c.GetConnected(), c.GetAtHead(), c.GetBehind(), c.GetNacked(), c.GetParked())
	a.line("guards", "%d tripped", s.GetGuardsTripped())
	a.line("dampers", "%d active, %d in quarantine", s.GetDampersTotal(), s.GetQuarantined())
	a.line("store", "%s", lower(s.GetStore().GetState().String(), "STORE_STATE_"))
	for _, d := range s.GetDampers() {
		a.line("held", "%s", damperLine(d, time.Now()))
	}
	if more := int(s.GetDampersTotal()) - len(s.GetDampers()); more > 0 {
		a.line("held", "%d more", more)
	}
	for _, p := range problems {
		a.line("!", "%s", p)
	}
}

// damperLine says what is held back, by what, and until when. A guard is among
// the problems too, with where to look.
func damperLine(d *adminv1.ActiveDamper, now time.Time) string {
	of := cmp.Or(d.GetService(), "region")
	if d.GetUid() != "" {
		of += "/" + shown(d.GetLabel(), d.GetUid())
	}
	end := ""
	if at := d.GetDamper().GetEndTime(); at != nil {
		end = ", ends in " + span(at.AsTime().Sub(now))
	}
	return fmt.Sprintf("%s by %s%s: %s", of, lower(d.GetDamper().GetKind().String(), "DAMPER_KIND_"), end, d.GetDamper().GetDetail())
}

// problemsOf lists what makes a status degraded, each as a sentence that says
// where to look.
func problemsOf(s *adminv1.Status) (out []string) {
	for _, c := range s.GetChecks() {
		if !c.GetOk() {
			out = append(out, fmt.Sprintf("check %s: %s", c.GetName(), c.GetReason()))
		}
	}
	for _, g := range s.GetGuards() {
		out = append(out, fmt.Sprintf("guard: %s has %d of %d serving, below %d%%: all are listed. See: sightline resolve %s",
			g.GetService(), g.GetServing(), g.GetMembers(), g.GetFloorPercent(), g.GetService()))
	}
	if more := int(s.GetGuardsTripped()) - len(s.GetGuards()); more > 0 {
		out = append(out, fmt.Sprintf("guard: %d further services", more))
	}
	if st := s.GetStore(); st.GetState() != adminv1.StoreState_STORE_STATE_OK {
		out = append(out, fmt.Sprintf("store: read-only for %s: %s. Views go on; changes are refused", age(st.GetSince().AsTime(), time.Now()), st.GetReason()))
	}
	if n := s.GetClients().GetNacked(); n > 0 {
		out = append(out, fmt.Sprintf("clients: %d reject what they were sent. See: sightline client list --nacked -o wide", n))
	}
	if sh := s.GetShed(); sh.GetActive() {
		out = append(out, fmt.Sprintf("shed: additions wait for %s: %s", age(sh.GetSince().AsTime(), time.Now()), sh.GetReason()))
	}
	for _, alarm := range s.GetAlarms() {
		out = append(out, "alarm: "+alarm)
	}
	return out
}

// printDown says of each listener of a server that does not answer whether
// somebody listens there: a process that is gone is another matter than one
// that is busy with its start.
func (a *app) printDown(ctx context.Context, t target) error {
	var looked []string
	for _, l := range []struct{ name, addr string }{{"API", t.API}, {"xDS", t.XDS}, {"DNS", t.DNS}} {
		if l.addr != "" {
			looked = append(looked, fmt.Sprintf("%s %s: %s", l.name, l.addr, knock(ctx, l.addr)))
		}
	}
	if t.HTTP != "" {
		looked = append(looked, fmt.Sprintf("readiness http://%s/readyz: %s", t.HTTP, readiness(ctx, t.HTTP)))
	}
	if !a.printer().human() {
		return a.printer().list(listing{kind: "StatusList", warnings: looked})
	}
	a.line("server", "%s  NOT REACHABLE", t.where())
	for _, l := range looked {
		a.line("tried", "%s", l)
	}
	return nil
}

// knock connects to a listener over TCP.
func knock(ctx context.Context, addr string) string {
	ctx, cancel := context.WithTimeout(ctx, probeWithin)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err == nil {
		_ = conn.Close()
		return "somebody listens"
	}
	return reasonOf(err)
}

// readiness asks the HTTP port, which answers from the first moment of a start.
func readiness(ctx context.Context, addr string) string {
	ctx, cancel := context.WithTimeout(ctx, probeWithin)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/readyz?verbose", nil)
	if err != nil {
		return err.Error()
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return reasonOf(err)
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(io.LimitReader(resp.Body, 4<<10)) // what came is worth showing
	return strings.Join(strings.Fields(resp.Status+" "+string(body)), " ")
}

// reasonOf is the end of a chain of network errors: connection refused.
func reasonOf(err error) string {
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Sprintf("no answer within %s", probeWithin)
	}
	var op *net.OpError
	if errors.As(err, &op) {
		return strings.TrimPrefix(op.Err.Error(), "connect: ")
	}
	return err.Error()
}
