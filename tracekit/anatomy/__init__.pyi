from tracekit.anatomy.attention import Attention as Attention
from tracekit.anatomy.controls import Controls as Controls
from tracekit.anatomy.explanation import Explanation as Explanation
from tracekit.anatomy.minimality import Minimality as Minimality
from tracekit.anatomy.paths import Paths as Paths
from tracekit.anatomy.set_game import SetGame as SetGame
from tracekit.anatomy.side_effects import EffectOn as EffectOn
from tracekit.anatomy.side_effects import SideEffects as SideEffects
