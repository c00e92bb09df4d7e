"""The Kubernetes backend: any conformant cluster runs the jobs, kube-scheduler binds the pods."""
