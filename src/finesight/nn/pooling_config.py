"""Names of poolings as settings: what a configuration may hold is asked of the registry."""

from functools import partial
from typing import Annotated

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from finesight.nn.poolings import offered_poolings


def _offered(name: str, *, trainable: bool = False) -> str:
    names = [name for name, pooling in offered_poolings().items() if pooling.trainable or not trainable]
    if name not in names:
        *first, last = map(repr, names)
        raise PydanticCustomError("literal_error", f"Input should be {', '.join(first)} or {last}")
    return name


PoolingName = Annotated[str, AfterValidator(_offered)]
TrainPooling = Annotated[str, AfterValidator(partial(_offered, trainable=True))]  # what a head sees of φ while training
