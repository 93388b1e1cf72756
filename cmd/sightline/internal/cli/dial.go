package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"

	"github.com/sightlinedev/sightline/identity/svid"
)

// sayWaiting is when a person is told what a command waits for.
const sayWaiting = time.Second

// target is the context in force with the flags laid over it.
func (a *app) target() (target, error) {
	t, err := loadTarget(a.contextArg)
	if err != nil {
		return target{}, err
	}
	t.API = cmp.Or(a.override.API, t.API)
	t.Cert = cmp.Or(a.override.Cert, t.Cert)
	t.Key = cmp.Or(a.override.Key, t.Key)
	t.Bundle = cmp.Or(a.override.Bundle, t.Bundle)
	const hint = "start one with: sightline dev    or give --api, --cert, --key and --bundle"
	switch {
	case t.API == "":
		return target{}, &exitError{code: exitUsage, err: errors.New("no control plane chosen: there is no context and no --api"), hint: hint}
	case t.Cert == "" || t.Key == "" || t.Bundle == "":
		return target{}, &exitError{code: exitUsage, err: fmt.Errorf("no identity to call %s with", t.API), hint: "give --cert, --key and --bundle: connections are mTLS"}
	}
	return t, nil
}

// call dials the API, runs fn within the timeout, and says where it tried when
// nobody answered.
func (a *app) call(ctx context.Context, fn func(context.Context, *grpc.ClientConn, target) error) error {
	t, err := a.target()
	if err != nil {
		return err
	}
	conn, err := a.dial(t)
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	if terminal(a.err) {
		say := time.AfterFunc(sayWaiting, func() { fmt.Fprintf(a.err, "waiting for %s, up to %s\n", t.where(), a.timeout) })
		defer say.Stop()
	}
	return a.explain(fn(ctx, conn, t), conn, t)
}

func (a *app) dial(t target) (*grpc.ClientConn, error) {
	src, err := svid.FromFiles(svid.Files{SVID: t.Cert, Key: t.Key, Bundle: t.Bundle}, 0, svid.Events{})
	if err != nil {
		hint := "these are the files of --cert, --key and --bundle"
		if t.Name != "" {
			hint = "these are the files of context " + t.Name + ": has what wrote it ended? Start `sightline dev`, or give --api, --cert, --key and --bundle"
		}
		return nil, &exitError{code: exitFailure, err: err, hint: hint}
	}
	return grpc.NewClient(t.API, grpc.WithTransportCredentials(src.ClientCredentials(svid.OurServer(src.TrustDomain()))),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(answerBytes)))
}

// answerBytes bounds an answer: explaining a service of ten thousand instances
// takes far more than gRPC allows by itself.
const answerBytes = 256 << 20

// explain adds to a connection failure what a person needs next. Time that ran
// out before there was a connection is one.
func (a *app) explain(err error, conn *grpc.ClientConn, t target) error {
	s, ok := status.FromError(err)
	if err == nil || !ok || answered(s) {
		return err
	}
	switch s.Code() {
	case codes.Unavailable:
		return unreachable(t, dialFailure(s.Message()))
	case codes.DeadlineExceeded:
		if conn.GetState() != connectivity.Ready {
			return unreachable(t, fmt.Sprintf("no connection within %s", a.timeout))
		}
		return &exitError{code: exitTimeout, err: fmt.Errorf("the control plane at %s did not answer within %s", t.where(), a.timeout),
			hint: "look at: sightline status    or wait longer with --timeout"}
	}
	return err
}

func unreachable(t target, why string) error {
	hint := "clients keep routing on the views they hold; is the server running?"
	if strings.Contains(why, "handshake") {
		hint = "something answers, but the two sides do not trust each other: are --cert and --bundle of the server's trust domain, and in force?"
	}
	return &exitError{code: exitUnreachable, err: fmt.Errorf("the control plane at %s cannot be reached: %s", t.where(), why), hint: hint}
}

// dialFailure takes the reason out of gRPC's wrapping of it.
func dialFailure(message string) string {
	if _, rest, ok := strings.Cut(message, `desc = "`); ok {
		message = strings.TrimSuffix(rest, `"`)
	}
	message = strings.TrimPrefix(message, "transport: ")
	return plain(strings.TrimPrefix(message, "Error while dialing: "))
}
