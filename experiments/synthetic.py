import sys; sys.path.insert(0,'.')
from tests.unit.speculation.draft_length_world import *
import numpy as np
for n in (1,2,4,8):
    for ag in (1.0,.8,.5,.0):
        sp={f:np.mean([play(n,100,lambda k:ag,fixed=f,seed=s).speed() for s in range(3)]) for f in (None,0,1,2,3,4)}
        o=sp.pop(None); b=max(sp,key=sp.get)
        v=np.mean([np.mean(play(n,100,lambda k:ag,seed=s).verified) for s in range(2)])
        print(n,ag,"to none %.3f"%(o/sp[0]),"to best %.3f"%(o/sp[b]),"best",b,"verified %.2f"%v)
