"""The configuration that kube-scheduler is started with."""

import pytest
import yaml

from gpuplane.extender.scheduler_config import SchedulerConfig, render_config


def test_the_configuration_names_the_verbs_and_keeps_scheduling_without_us() -> None:
    found = yaml.safe_load(render_config(SchedulerConfig("http://127.0.0.1:8888/")))
    (extender,) = found["extenders"]
    assert extender["urlPrefix"] == "http://127.0.0.1:8888"
    assert extender["ignorable"] is True
    assert extender["nodeCacheCapable"] is True
    assert "bindVerb" not in extender
    assert {"name": "nvidia.com/gpu"} in extender["managedResources"]
    assert {"name": "nvidia.com/mig-1g.10gb"} in extender["managedResources"]
    assert found["profiles"] == [{"schedulerName": "gpuplane-scheduler"}]


def test_https_is_said_with_its_files() -> None:
    config = SchedulerConfig("https://extender:8888", binds=True, ca_file="/ca.pem")
    (extender,) = yaml.safe_load(render_config(config))["extenders"]
    assert extender["enableHTTPS"] is True
    assert extender["tlsConfig"] == {"caFile": "/ca.pem"}
    assert extender["bindVerb"] == "bind"


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="no address"):
        render_config(SchedulerConfig("extender:8888"))


def test_certificates_for_an_address_without_tls_are_refused() -> None:
    with pytest.raises(ValueError, match="has no TLS"):
        render_config(SchedulerConfig("http://extender:8888", ca_file="/ca.pem"))
