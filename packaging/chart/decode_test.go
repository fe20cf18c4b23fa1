package main

import (
	"fmt"
	"strings"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/stretchr/testify/require"
	apps "k8s.io/api/apps/v1"
	autoscaling "k8s.io/api/autoscaling/v2"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// objects are the documents of a release, in the types of the API.
type objects struct {
	deployments []apps.Deployment
	jobs        []batch.Job
	configMaps  []core.ConfigMap
	services    []core.Service
	budgets     []policy.PodDisruptionBudget
	scalers     []autoscaling.HorizontalPodAutoscaler
	scaled      []scaledObject
	policies    []networking.NetworkPolicy
	monitors    []monitoring.ServiceMonitor
	rules       []monitoring.PrometheusRule
}

// scaledObject has the fields of KEDA's ScaledObject (keda.sh/v1alpha1) that the chart writes. KEDA's own types
// are in the module of its operator, which is too large for this.
type scaledObject struct {
	meta.TypeMeta   `json:",inline"`
	meta.ObjectMeta `json:"metadata"`
	Spec            struct {
		ScaleTargetRef  autoscaling.CrossVersionObjectReference `json:"scaleTargetRef"`
		MinReplicaCount *int32                                  `json:"minReplicaCount"`
		MaxReplicaCount int32                                   `json:"maxReplicaCount"`
		Triggers        []struct {
			Type     string            `json:"type"`
			Metadata map[string]string `json:"metadata"`
		} `json:"triggers"`
		Advanced struct {
			HorizontalPodAutoscalerConfig struct {
				Behavior *autoscaling.HorizontalPodAutoscalerBehavior `json:"behavior"`
			} `json:"horizontalPodAutoscalerConfig"`
		} `json:"advanced"`
	} `json:"spec"`
}

// strictly decodes a document of the kind of T. Unknown and repeated fields are errors.
func strictly[T any](doc string, list *[]T) error {
	var object T
	if err := yaml.UnmarshalStrict([]byte(doc), &object); err != nil {
		return err
	}
	*list = append(*list, object)
	return nil
}

func decode(docs []string) (objects, error) {
	var o objects
	for _, doc := range docs {
		var kind meta.TypeMeta
		if err := yaml.Unmarshal([]byte(doc), &kind); err != nil {
			return o, fmt.Errorf("%w in\n%s", err, doc)
		}
		var err error
		switch kind.APIVersion + " " + kind.Kind {
		case "apps/v1 Deployment":
			err = strictly(doc, &o.deployments)
		case "batch/v1 Job":
			err = strictly(doc, &o.jobs)
		case "v1 ConfigMap":
			err = strictly(doc, &o.configMaps)
		case "v1 Service":
			err = strictly(doc, &o.services)
		case "policy/v1 PodDisruptionBudget":
			err = strictly(doc, &o.budgets)
		case "autoscaling/v2 HorizontalPodAutoscaler":
			err = strictly(doc, &o.scalers)
		case "keda.sh/v1alpha1 ScaledObject":
			err = strictly(doc, &o.scaled)
		case "networking.k8s.io/v1 NetworkPolicy":
			err = strictly(doc, &o.policies)
		case "monitoring.coreos.com/v1 ServiceMonitor":
			err = strictly(doc, &o.monitors)
		case "monitoring.coreos.com/v1 PrometheusRule":
			err = strictly(doc, &o.rules)
		default:
			err = fmt.Errorf("no type is known for %q", kind.APIVersion+" "+kind.Kind)
		}
		if err != nil {
			return o, fmt.Errorf("%w in\n%s", err, doc)
		}
	}
	return o, nil
}

func TestEveryDocumentIsOfTheAPI(t *testing.T) {
	t.Parallel()
	for _, file := range examples(t) {
		docs := documents(t, exampleValues(t, file))
		_, err := decode(docs)
		require.NoError(t, err, file)
	}
	whole := strings.Join(documents(t, exampleValues(t, "examples/everything.yaml")), "---\n")
	for _, field := range []string{
		"readOnlyRootFilesystem", "terminationGracePeriodSeconds", "unhealthyPodEvictionPolicy", "backoffLimit", "minReplicaCount", "scaleDown",
		"policyTypes", "podTargetLabels", "clusterIP", "data", "for", "matchLabelKeys", "failureThreshold",
	} {
		broken := strings.ReplaceAll(whole, " "+field+": ", " wrongField: ")
		broken = strings.ReplaceAll(broken, "\n"+field+":", "\nwrongField:")
		broken = strings.ReplaceAll(broken, " "+field+":\n", " wrongField:\n")
		require.NotEqual(t, whole, broken, field)
		_, err := decode(strings.Split(broken, "---\n"))
		require.ErrorContains(t, err, `unknown field "wrongField"`, field)
	}
	for was, is := range map[string]string{
		"kind: Job":          "kind: Jobs",
		"maxUnavailable: 0":  "maxUnavailable: {}",
		"replicas: 3":        "replicas: three",
		"  periodSeconds: 2": "  periodSeconds: 2\n            periodSeconds: 3",
	} {
		require.Contains(t, whole, was)
		_, err := decode(strings.Split(strings.ReplaceAll(whole, was, is), "---\n"))
		require.Error(t, err, was)
	}
}
