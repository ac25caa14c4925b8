package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"
)

// A Deployment says how Temporal tells this build's workers from those of others. The zero value: it does not, and any
// worker gets any work.
type Deployment struct {
	On      bool
	BuildID string
	Promote bool // a build that is new makes itself the one that gets the work
}

// DeploymentName is the name of all our workers together.
const DeploymentName = "bobbin"

// All workflows follow the current build, also those that run. A thread's workflow runs for as long as its thread is busy, so
// one that kept its build would never leave it. A background turn ends within the hour, yet would be stranded if its build's
// workers went first, as they do in a rolling deploy. So changes of workflow code must replay: see workflows/testdata.
func (d Deployment) options() worker.DeploymentOptions {
	if !d.On {
		return worker.DeploymentOptions{}
	}
	return worker.DeploymentOptions{
		UseVersioning: true, Version: worker.WorkerDeploymentVersion{DeploymentName: DeploymentName, BuildID: d.BuildID},
		DefaultVersioningBehavior: workflow.VersioningBehaviorAutoUpgrade,
	}
}

// promoteEvery is between tries: the server hears of a build when its workers first ask for work.
const promoteEvery = time.Second

// promote makes a build current that has never been, once its workers ask for work, and is done then: one that was current and
// is no more was replaced, and a worker of it that starts again must not take over.
func (d Deployment) promote(ctx context.Context, c client.Client) {
	for {
		done, err := d.promoteOnce(ctx, c)
		if done || ctx.Err() != nil {
			return
		}
		if err != nil {
			slog.Warn("build not made current yet", "build", d.BuildID, "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(promoteEvery):
		}
	}
}

func (d Deployment) promoteOnce(ctx context.Context, c client.Client) (done bool, err error) {
	info, err := describe(ctx, c)
	if err != nil {
		return false, err
	}
	current := currentOf(info.Info)
	own := slices.IndexFunc(info.Info.VersionSummaries, func(v client.WorkerDeploymentVersionSummary) bool { return v.Version.BuildID == d.BuildID })
	switch {
	case current == d.BuildID:
		return true, nil
	case own < 0:
		return false, errors.New("Temporal has not heard of it")
	case current != "" && info.Info.VersionSummaries[own].DrainageStatus != client.WorkerDeploymentVersionDrainageStatusUnspecified:
		slog.Warn("another build is current", "build", d.BuildID, "current", current)
		return true, nil
	}
	// The token makes it fail where another build was promoted meanwhile; the next try looks again.
	_, err = c.WorkerDeploymentClient().GetHandle(DeploymentName).SetCurrentVersion(ctx, client.WorkerDeploymentSetCurrentVersionOptions{
		BuildID: d.BuildID, ConflictToken: info.ConflictToken,
	})
	if err == nil {
		slog.Info("build is current", "build", d.BuildID, "before", current)
	}
	return err == nil, err
}

func describe(ctx context.Context, c client.Client) (client.WorkerDeploymentDescribeResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return c.WorkerDeploymentClient().GetHandle(DeploymentName).Describe(ctx, client.WorkerDeploymentDescribeOptions{})
}

func currentOf(info client.WorkerDeploymentInfo) string {
	if info.RoutingConfig.CurrentVersion == nil {
		return ""
	}
	return info.RoutingConfig.CurrentVersion.BuildID
}

// A Build is one that Temporal knows.
type Build struct {
	ID      string
	Since   time.Time // that Temporal first heard of it
	Current bool      // it gets the work
	Left    bool      // another was made current after it, and the server holds that nothing of it is left
}

// Builds lists what Temporal knows, the newest first. Without versioning, or before the first worker with it, there is an error.
func Builds(ctx context.Context, c client.Client) ([]Build, error) {
	info, err := describe(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("list builds: %w", err)
	}
	var list []Build
	for _, v := range info.Info.VersionSummaries {
		list = append(list, Build{
			ID: v.Version.BuildID, Since: v.CreateTime, Current: v.Version.BuildID == currentOf(info.Info),
			Left: v.DrainageStatus == client.WorkerDeploymentVersionDrainageStatusDrained,
		})
	}
	slices.SortFunc(list, func(a, b Build) int { return cmp.Or(b.Since.Compare(a.Since), cmp.Compare(a.ID, b.ID)) })
	return list, nil
}

// SetCurrent makes a build the one that gets the work. It fails where none of its workers ask for any.
func SetCurrent(ctx context.Context, c client.Client, buildID string) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	_, err := c.WorkerDeploymentClient().GetHandle(DeploymentName).SetCurrentVersion(ctx, client.WorkerDeploymentSetCurrentVersionOptions{BuildID: buildID})
	if err != nil {
		return fmt.Errorf("make build %s current: %w", buildID, err)
	}
	return nil
}
