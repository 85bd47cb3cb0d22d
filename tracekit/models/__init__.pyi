from tracekit.models.hooked import HookedModel as HookedModel
from tracekit.models.hooked import embedding_std as embedding_std
from tracekit.models.hooked import foreign_hooks as foreign_hooks
from tracekit.models.hooked import model_name as model_name
from tracekit.models.hooked import revision_of as revision_of
from tracekit.models.hooked import weights_digest as weights_digest
from tracekit.models.loading import load_model as load_model
