"""What can be refused about prices."""

from gpuplane.kit.errors import Unprocessable


class BadPrice(Unprocessable):
    """A price with a field that cannot hold."""

    code = "bad_price"
